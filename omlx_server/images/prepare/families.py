"""Registry of the families that prepare images."""

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

_OF_CLASS: dict[str, Make] = {
    "Qwen2VL": QwenPreparer,
    "Qwen2_5_VL": QwenPreparer,
    "Qwen3VL": QwenPreparer,
    "Gemma3": Gemma3Preparer,
    "Idefics3": Idefics3Preparer,
    "SmolVLM": Idefics3Preparer,
}
_OF_NAME: dict[str, Make] = {
    **{f"{name}ImageProcessor": make for name, make in _OF_CLASS.items()},
    **{f"{name}Processor": make for name, make in _OF_CLASS.items()},
    "qwen2_vl": QwenPreparer,
    "qwen2_5_vl": QwenPreparer,
    "qwen3_vl": QwenPreparer,
    "qwen3_vl_moe": QwenPreparer,
    "qwen3_5": QwenPreparer,
    "qwen3_5_moe": QwenPreparer,
    "gemma3": Gemma3Preparer,
    "idefics3": Idefics3Preparer,
    "smolvlm": Idefics3Preparer,
}
# Suffixes of class names that say how a class computes, not what.
_BACKENDS = ("Fast", "Pil")


def make_preparer(
    config: Mapping[str, Any], model: Mapping[str, Any], detail: Detail = _FULL
) -> Preparer:
    """Return a model's preparer. `config` is its `preprocessor_config.json`, or a
    `processor_config.json` with `image_processor`; `model` is its `config.json`. Raises LoadFailed
    for an unknown family or a wrong field."""
    whole = {**config, **fields.mapping(config, "image_processor")}
    config = {name: value for name, value in whole.items() if value is not None}
    own_names = config.get("image_processor_type"), config.get("processor_class")
    # An unknown name decides, too: another family's preparation would be wrong.
    name = next(filter(None, map(_bare, (*own_names, model.get("model_type")))), "")
    if name in _OF_NAME:
        return _OF_NAME[name](config, model, detail)
    what = f"{name!r:.100} is not known" if name else "no field says of which kind they are"
    raise LoadFailed(f"the model's images can't be prepared: {what}")


def _bare(name: object) -> str:
    bare = name if isinstance(name, str) else ""
    for end in _BACKENDS:
        bare = bare.removesuffix(end)
    return bare
