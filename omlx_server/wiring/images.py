"""Vision of a model, and the reader of its requests' images."""

import logging
from functools import partial

from omlx_server.api.models.image_reader import ImageReader, TextOnly
from omlx_server.compute.embed.files import read_object
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.errors import LoadFailed, ModelUnavailable
from omlx_server.images.prepare.families import make_preparer
from omlx_server.images.prepare.prepared import Detail
from omlx_server.models.locate import Located
from omlx_server.models.vision import preprocessor_config, tells_of_vision, why_no_images
from omlx_server.settings import Settings
from omlx_server.text.image_marks import ImageMarkup
from omlx_server.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


def why_no_vision(located: Located, settings: Settings) -> str:
    """Return why a model gets no vision, for users, or "". An unexpected lack is logged."""
    enabled = settings.images.enabled
    mode = settings.speculation_of(located.names).mode
    why = why_no_images(located.path, enabled=enabled, uses_heads=mode == "heads")
    if why and enabled and tells_of_vision(located.path):
        _log.warning("%s sees no images: %s", located.names[0], why)
    return why


def make_image_reader(
    located: Located, engine: GeneratorClient, settings: Settings, tokenizer: Tokenizer
) -> ImageReader | TextOnly:
    """Return the image reader of a model; text only if its files don't say how."""
    try:
        config = read_object(located.path / "config.json")
        make = partial(make_preparer, preprocessor_config(located.path), config)
        markup = ImageMarkup.of(make(Detail()).family, tokenizer)
    except (LoadFailed, ModelUnavailable) as error:
        _log.warning("%s takes no images: %s", located.names[0], error.message)
        return TextOnly(error.message)
    return changed_image_reader(ImageReader(make, markup, engine.setting_aside), settings)


def changed_image_reader(
    reader: ImageReader | TextOnly, settings: Settings
) -> ImageReader | TextOnly:
    """Return a copy with the settings that may change."""
    if isinstance(reader, TextOnly):
        return reader
    return reader.bounded(settings.images.max_tokens, settings.images.max_per_request)
