"""Whether a model gets vision: its vision tower beside it, so that it takes images."""

import logging

from omlx_server.models.locate import Located
from omlx_server.models.vision import tells_of_vision, why_no_images
from omlx_server.settings import Settings

_log = logging.getLogger(__name__)


def why_no_vision(located: Located, settings: Settings) -> str:
    """Why a model gets no vision, in words for users; "" if it gets one. Where it could have one,
    and the settings do not say that it should not, a warning is logged."""
    enabled = settings.images.enabled
    mode = settings.speculation_of(located.names).mode
    why = why_no_images(located.path, enabled=enabled, uses_heads=mode == "heads")
    if why and enabled and tells_of_vision(located.path):
        _log.warning("%s sees no images: %s", located.names[0], why)
    return why
