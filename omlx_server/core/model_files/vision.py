"""Whether a model takes images, as its files and the settings tell. Pure; any thread.

The reasons against it are ends of a sentence that begins with "it takes no images: ".
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
"""The families of vision towers that are known here, by the `model_type` in config.json."""

PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""The files that say how the images of a model are prepared; a model has at least one."""

# How the names of a tower's tensors begin in the checkpoints of all families.
_TOWER = ("visual.", "vision_tower.", "vision_model.")


def has_vision(config: Mapping[str, Any]) -> bool:
    """Whether config.json describes a vision tower, of whatever family."""
    return isinstance(config.get("vision_config"), Mapping)


def vision_family(config: Mapping[str, Any]) -> str:
    """The name of the family of a model's vision tower; empty where it has no tower, or one of a
    family that is not known here."""
    return FAMILIES.get(str(config.get("model_type")), "") if has_vision(config) else ""


def has_tower(tensors: Iterable[str]) -> bool:
    """Whether a tensor of a vision tower is among those with these names."""
    return any(name.removeprefix("model.").startswith(_TOWER) for name in tensors)


def files_lack(config: Mapping[str, Any], tensors: Iterable[str], files: Collection[str]) -> str:
    """Why the files of a model don't allow it to take images; empty when they do. `tensors` are the
    names of its weights, `files` those of the files in its directory."""
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
    """Why a server lets a model take no images, whatever its files hold; empty when it lets it.
    `enabled` is the setting `images.enabled`. With `uses_heads` heads of the model draft for it,
    which can't be combined with images."""
    if not enabled:
        return "images.enabled is off"
    if not has_pillow:
        return f"the extra 'vision' is not installed ({how_to_install('vision')})"
    return "speculation.mode is heads, which can't be combined with images" if uses_heads else ""
