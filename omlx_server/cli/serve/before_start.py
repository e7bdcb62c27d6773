"""Checks and downloads of `serve` before MLX is imported, which takes seconds."""

import logging
from contextlib import suppress
from pathlib import Path

from omlx_server.cli.shell.options import check_model_overrides
from omlx_server.core.adapters import is_path
from omlx_server.errors import AdapterNotFound, AdapterUnusable, ModelUnavailable, UsageError
from omlx_server.models import catalogue, locate, pull
from omlx_server.models.adapters.files import check_adapter
from omlx_server.models.adapters.registry import AdapterPlaces
from omlx_server.models.progress import ProgressListener
from omlx_server.settings import Loaded, Settings, warnings
from omlx_server.settings.types import expanded

_log = logging.getLogger(__name__)
_ADAPTER_HINT = "--adapter takes the name of an adapter of the model, or the path of its directory"


def check_start(settings: Settings, model: str) -> None:
    """Check that the models and the default adapter are here or can be fetched, without network.
    Raises UsageError for an adapter, and ModelUnavailable."""
    models = settings.models
    names = (model, models.embedding, models.reranker, settings.speculation.draft_model)
    for name in map(models.resolve_alias, filter(None, names)):
        if name not in catalogue.NAMES:
            locate.find_or_expect(name, models)
    _check_adapter(settings, models.resolve_alias(model))


def prepare(loaded: Loaded, model: str, progress: ProgressListener) -> None:
    """Start the log, check overrides, and download missing models. Raises UsageError."""
    from omlx_server.process.logs import start_logging

    log = loaded.settings.logging
    start_logging(log.level, log.file, log.format)
    for warning in warnings(loaded):
        _log.warning("%s", warning)
    check_model_overrides(loaded.settings)
    models = loaded.settings.models
    name = models.resolve_alias(model)
    if name not in catalogue.NAMES:
        locate.locate(name, models, progress)
    for encoder in map(models.resolve_alias, filter(None, (models.embedding, models.reranker))):
        pull.encoder(encoder, models, progress)


def _check_adapter(settings: Settings, model: str) -> None:
    """Check the default adapter: a path always, a name if the model is here already."""
    located = None
    with suppress(ModelUnavailable):  # a damaged model of the catalogue is made anew
        located = locate.find_here(model, settings.models)
    names = located.names if located else (model,)
    adapter = settings.default_adapter_of(names, served=True)
    if is_path(adapter):
        path = expanded(adapter).absolute()
        if not path.is_dir():
            raise UsageError(f"there is no directory {path} of an adapter", hint=_ADAPTER_HINT)
    shared = settings.adapters.directory
    model_directory = located.path if located else Path()
    places = AdapterPlaces(model_directory, names, Path(shared) if shared else None, adapter)
    name = places.default_name
    if name and (located or is_path(adapter)):
        try:
            check_adapter(places.directory_of(name), name)
        except (AdapterNotFound, AdapterUnusable) as error:
            raise UsageError(error.message, hint=_ADAPTER_HINT) from error
