"""Tells whether a model takes images. Pure.

The reasons against it end a sentence that begins with "it takes no images: ".
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from omlx_server.errors import how_to_install

FAMILIES: Mapping[str, str] = {
    "gemma3": "Gemma 3",
    "idefics3": "Idefics3",
    "qwen2_vl": "Qwen2-VL",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_vl_moe": "Qwen3-VL",
    "qwen3_5": "Qwen3.5",
    "qwen3_5_moe": "Qwen3.5",
    "smolvlm": "SmolVLM",
}
"""The known families of vision towers, by the `model_type` in config.json."""

PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""The files that say how a model's images are prepared; it has at least one."""

# Prefixes of the names of a tower's tensors.
_TOWER = ("visual.", "vision_tower.", "vision_model.")


def has_vision(config: Mapping[str, Any]) -> bool:
    return isinstance(config.get("vision_config"), Mapping)


def vision_family(config: Mapping[str, Any]) -> str:
    return FAMILIES.get(str(config.get("model_type")), "") if has_vision(config) else ""


def has_tower(tensors: Iterable[str]) -> bool:
    return any(name.removeprefix("model.").startswith(_TOWER) for name in tensors)


def files_lack(config: Mapping[str, Any], tensors: Iterable[str], files: Collection[str]) -> str:
    """Return why a model's files don't allow images, or ""."""
    if not has_vision(config):
        return "it is a model for text"
    if not vision_family(config):
        return f"vision towers of the type {config.get('model_type')!s:.40} are not known here"
    if not has_tower(tensors):
        return "its files have no weights of the vision tower"
    if not any(name in files for name in PREPROCESSORS):
        return f"it has no {PREPROCESSORS[0]}"
    return ""


def server_lacks(*, enabled: bool, has_pillow: bool, uses_heads: bool) -> str:
    """Return why the server allows no images for any model, or ""."""
    if not enabled:
        return "images.enabled is off"
    if not has_pillow:
        return f"the extra 'vision' is not installed ({how_to_install('vision')})"
    return "speculation.mode is heads, which can't be combined with images" if uses_heads else ""
