"""Whether a model gets eyes: its vision tower beside it, so that it takes images."""

import logging
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from omlx_server.compute.embed.files import read_object
from omlx_server.compute.vision.families import family_of
from omlx_server.models.locate import Located
from omlx_server.settings import Settings

_log = logging.getLogger(__name__)


def why_blind(located: Located, settings: Settings) -> str:
    """Why a model gets no eyes, in words for users; "" if it gets them. Where it could see, and the
    settings do not say that it should not, a warning is logged. Raises ModelUnavailable if its
    config.json can't be read."""
    config = read_object(located.path / "config.json")
    if "vision_config" not in config:
        return "it is a model for text"
    if not settings.images.enabled:
        return "images.enabled is false"
    why = _missing(config, settings.speculation_of(located.names).mode)
    if why:
        _log.warning("%s sees no images: %s", located.names[0], why)
    return why


def _missing(config: Mapping[str, Any], speculation: str) -> str:
    if family_of(config) is None:
        return f"no vision tower is known here for the model type {config.get('model_type')!r}"
    if speculation == "heads":
        return 'its heads draft for it (speculation.mode = "heads"), and these see no images'
    if not _has_pillow():
        return "the server lacks the extra 'vision' (pip install 'omlx-server[vision]')"
    return ""


def _has_pillow() -> bool:
    try:
        metadata.version("pillow")
    except metadata.PackageNotFoundError:
        return False
    return True
