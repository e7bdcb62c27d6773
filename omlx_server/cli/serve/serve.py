"""`omlx-server serve`: loads the settings, then runs the server until it ends."""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

from omlx_server import settings
from omlx_server.cli.server_client.http import socket_of
from omlx_server.cli.shell.ending import on_sigterm
from omlx_server.cli.shell.options import check_model_overrides, overrides_of
from omlx_server.cli.shell.progress import Display, open_display
from omlx_server.core.adapters import is_path
from omlx_server.errors import (
    AdapterNotFound,
    AdapterUnusable,
    ConfigError,
    ModelUnavailable,
    UsageError,
)
from omlx_server.models import catalogue, locate, pull
from omlx_server.models.adapters.files import check_adapter
from omlx_server.models.adapters.registry import AdapterPlaces
from omlx_server.models.catalogue import STARTER
from omlx_server.models.progress import ProgressListener
from omlx_server.process import failed_starts
from omlx_server.process.listen import listening
from omlx_server.settings import Loaded, Settings, warnings
from omlx_server.settings.layers import salvage
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
    with suppress(ModelUnavailable):  # not here, or damaged: it is fetched later
        located = locate.find_here(model, settings.models)
    names = located.names if located else (model,)
    adapter = settings.default_adapter_of(names, served=True)
    if is_path(adapter):
        path = expanded(adapter).absolute()
        if not path.is_dir():
            raise UsageError(f"there is no directory {path} of an adapter", hint=_ADAPTER_HINT)
    shared = settings.adapters.directory
    model_directory = located.path if located else Path()  # without one, only paths are checked
    places = AdapterPlaces(model_directory, names, Path(shared) if shared else None, adapter)
    name = places.default_name
    if name and (located or is_path(adapter)):
        try:
            check_adapter(places.directory_of(name), name)
        except (AdapterNotFound, AdapterUnusable) as error:
            raise UsageError(error.message, hint=_ADAPTER_HINT) from error


def run(
    model: str,
    flags: Mapping[str, str | None],
    config: Path | None,
    sets: Sequence[str] | None,
    fallbacks: Sequence[str] | None,
    *,
    degraded: bool = False,
    dry_run: bool = False,
) -> int:
    """Serve until stopped, and return the exit code. `fallbacks` are SECTION.KEY=VALUE for keys
    that nothing else sets. With `degraded` the program answers 503 while settings or model can't
    be used. Raises UsageError."""
    if dry_run:
        from omlx_server.cli.serve.dry_run import show_start

        return show_start(model, flags, config, sets or ())
    overrides, weak_overrides = overrides_of(sets or (), flags), overrides_of(fallbacks or (), None)
    with on_sigterm(_exit_at_once):
        if degraded:
            failed_starts.begin()
        try:
            return _serve(model, settings.load(config, overrides, fallbacks=weak_overrides))
        except UsageError as error:
            if not degraded:
                raise
            problem = error  # served behind the `except`, which would keep its traceback
        return _serve_degraded(problem, config, overrides)


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    # Until the server handles signals: an exception could be lost in a callback of an import.
    failed_starts.end(0)
    os._exit(0)


def _serve(model: str, loaded: settings.Loaded) -> int:
    models = loaded.settings.models
    name = models.resolve_alias(model or models.default or STARTER.name)
    server, announced = loaded.settings.server, not loaded.settings.cache.hot_cache_only
    with (
        listening(server.host, server.port, server.uds, announced=announced) as sock,
        open_display() as display,
    ):
        check_start(loaded.settings, name)
        prepare(loaded, name, display)
        from omlx_server.process.server import leave, serve

        code = serve(loaded, name, sock, progress=display, ready=partial(_print_ready, display))
    failed_starts.end(code)
    return leave(code)


def _serve_degraded(problem: UsageError, config: Path | None, overrides: Mapping[str, str]) -> int:
    file = config
    with suppress(ConfigError):
        file = config or settings.find_config()
    from omlx_server.process.degraded import serve_degraded

    load_again = partial(settings.load, config, overrides)
    code = serve_degraded(problem, salvage(file, overrides), file, load_again)
    failed_starts.end(code)
    return code


def _print_ready(display: Display, url: str, model: str) -> None:
    display.close()
    base = url if socket_of(url) else f"{url}/v1"
    print(f"omlx-server is ready: {base} serves {model} (Ctrl-C ends it)", flush=True)
