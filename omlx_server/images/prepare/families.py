"""Registry of the families that prepare images."""

from collections.abc import Callable, Mapping
from typing import Any

from omlx_server.errors import LoadFailed
from omlx_server.images.prepare import prepared as fields
from omlx_server.images.prepare.gemma3 import Gemma3Preparer
from omlx_server.images.prepare.idefics3 import Idefics3Preparer
from omlx_server.images.prepare.prepared import Detail, Preparer
from omlx_server.images.prepare.qwen import QwenPreparer

PreparerFactory = Callable[[Mapping[str, Any], Mapping[str, Any], Detail], Preparer]

_FULL = Detail()

_BY_CLASS: dict[str, PreparerFactory] = {
    "Qwen2VL": QwenPreparer,
    "Qwen2_5_VL": QwenPreparer,
    "Qwen3VL": QwenPreparer,
    "Gemma3": Gemma3Preparer,
    "Idefics3": Idefics3Preparer,
    "SmolVLM": Idefics3Preparer,
}
_BY_NAME: dict[str, PreparerFactory] = {
    **{f"{name}ImageProcessor": make for name, make in _BY_CLASS.items()},
    **{f"{name}Processor": make for name, make in _BY_CLASS.items()},
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), QwenPreparer),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), QwenPreparer),
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
    merged = {**config, **fields.mapping(config, "image_processor")}
    present = {name: value for name, value in merged.items() if value is not None}
    names = present.get("image_processor_type"), present.get("processor_class")
    # The first name decides, also an unknown one: another family's preparation would be wrong.
    name = next(filter(None, map(_without_backend, (*names, model.get("model_type")))), "")
    if name in _BY_NAME:
        return _BY_NAME[name](present, model, detail)
    problem = f"{name!r:.100} is not known" if name else "no field says of which kind they are"
    raise LoadFailed(f"the model's images can't be prepared: {problem}")


def _without_backend(name: object) -> str:
    bare = name if isinstance(name, str) else ""
    for backend in _BACKENDS:
        bare = bare.removesuffix(backend)
    return bare
