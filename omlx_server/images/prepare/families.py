"""Which family prepares the images of a model: the one registry."""

from collections.abc import Callable, Mapping
from typing import Any

from omlx_server.errors import LoadFailed
from omlx_server.images.prepare import config as fields
from omlx_server.images.prepare.gemma3 import Gemma3Preparer
from omlx_server.images.prepare.idefics3 import Idefics3Preparer
from omlx_server.images.prepare.prepared import Detail, Preparer
from omlx_server.images.prepare.qwen import QwenPreparer

Make = Callable[[Mapping[str, Any], Mapping[str, Any], Detail], Preparer]

_FULL = Detail()


def _qwen(config: Mapping[str, Any], model: Mapping[str, Any], detail: Detail) -> Preparer:
    return QwenPreparer(config, detail)


_OF_IMAGE_PROCESSOR: dict[str, Make] = {
    "Qwen2VLImageProcessor": _qwen,
    "Qwen2_5_VLImageProcessor": _qwen,
    "Qwen3VLImageProcessor": _qwen,
    "Gemma3ImageProcessor": Gemma3Preparer,
    "Idefics3ImageProcessor": Idefics3Preparer,
    "SmolVLMImageProcessor": Idefics3Preparer,
}
_OF_PROCESSOR: dict[str, Make] = {
    "Qwen2VLProcessor": _qwen,
    "Qwen2_5_VLProcessor": _qwen,
    "Qwen3VLProcessor": _qwen,
    "Gemma3Processor": Gemma3Preparer,
    "Idefics3Processor": Idefics3Preparer,
    "SmolVLMProcessor": Idefics3Preparer,
}
_OF_MODEL_TYPE: dict[str, Make] = {
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen,
    "gemma3": Gemma3Preparer,
    "idefics3": Idefics3Preparer,
    "smolvlm": Idefics3Preparer,
}
# Ends of class names that say how a class computes, not what.
_BACKENDS = ("Fast", "Pil")


def make_preparer(
    config: Mapping[str, Any], model: Mapping[str, Any], detail: Detail = _FULL
) -> Preparer:
    """The preparer of a model, for images of this detail. `config` is the model's
    `preprocessor_config.json`, or a `processor_config.json` that holds this as `image_processor`;
    `model` is its `config.json`.

    Raises LoadFailed if no family has this name, or if a field is wrong.
    """
    whole = {**config, **fields.mapping(config, "image_processor")}
    config = {name: value for name, value in whole.items() if value is not None}
    named = [
        (_OF_IMAGE_PROCESSOR, _bare(config.get("image_processor_type"))),
        (_OF_PROCESSOR, _bare(config.get("processor_class"))),
        (_OF_MODEL_TYPE, _bare(model.get("model_type"))),
    ]
    # A name that is there and not known decides, too: another preparation would be wrong.
    name = next((name for _, name in named if name), "")
    for known, own in named:
        if own and own == name and own in known:
            return known[own](config, model, detail)
    what = f"{name!r:.100} is not known" if name else "no field says of which kind they are"
    raise LoadFailed(f"the model's images can't be prepared: {what}")


def _bare(name: object) -> str:
    bare = name if isinstance(name, str) else ""
    for end in _BACKENDS:
        bare = bare.removesuffix(end)
    return bare
