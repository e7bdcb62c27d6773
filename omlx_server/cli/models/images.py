"""Says whether a model on this machine takes images, and how many tokens each takes."""

from collections.abc import Mapping
from typing import Any

from omlx_server.core.model_files.kind import ModelKind
from omlx_server.core.model_files.vision import server_lacks
from omlx_server.errors import BadRequest, LoadFailed
from omlx_server.models.installed import Installed
from omlx_server.models.json_file import read_json
from omlx_server.models.vision import has_pillow, preprocessor_config
from omlx_server.settings import Settings

# Width and height in pixels.
_SIZES = ((512, 512), (1024, 1024), (1920, 1080))


def images_of(model: Installed, settings: Settings) -> dict[str, Any]:
    """Return for JSON whether the model takes images, its vision tower's family (null if
    unknown), and why it takes none."""
    problem = _why_none(model, settings)
    return {"images": not problem, "vision": model.vision or None, "no_images": problem or None}


def tokens_of_images(model: Installed, settings: Settings) -> dict[str, int]:
    """Return the tokens of images by width and height. Imports numpy. Raises LoadFailed."""
    from omlx_server.images.prepare.families import make_preparer
    from omlx_server.images.prepare.prepared import Detail

    config = read_json(model.path / "config.json")
    detail = Detail(settings.images.max_tokens)
    preparer = make_preparer(preprocessor_config(model.path), config, detail)
    try:
        plans = {(width, height): preparer.plan(height, width) for width, height in _SIZES}
    except BadRequest as error:
        raise LoadFailed(error.message) from error
    return {f"{width} x {height}": plan.tokens for (width, height), plan in plans.items()}


def in_words(facts: Mapping[str, Any]) -> str:
    if not facts["images"]:
        return f"none: {facts['no_images']}"
    tokens: Mapping[str, int] = facts["image_tokens"]
    if len(set(tokens.values())) == 1:
        words = f"an image is {next(iter(tokens.values()))} tokens"
    else:
        words = ", ".join(f"{size} pixels are {count} tokens" for size, count in tokens.items())
    return f"yes, by a vision tower of {facts['vision']}: {words}"


def _why_none(model: Installed, settings: Settings) -> str:
    if model.kind is not ModelKind.CHAT:
        return "it is no chat model"
    mode = settings.speculation_of(model.names).mode
    return model.no_images or server_lacks(
        enabled=settings.images.enabled, has_pillow=has_pillow(), uses_heads=mode == "heads"
    )
