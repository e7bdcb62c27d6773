"""`omlx-server serve`: loads the settings, then runs the server until it ends."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

from omlx_server import settings
from omlx_server.cli.serve.before_start import check_start, prepare
from omlx_server.cli.server_client.http import socket_of
from omlx_server.cli.shell.ending import on_sigterm
from omlx_server.cli.shell.options import overrides_of
from omlx_server.cli.shell.progress import Display, open_display
from omlx_server.errors import ConfigError, UsageError
from omlx_server.models.catalogue import STARTER
from omlx_server.process.listen import listening
from omlx_server.settings.salvage import salvage


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
        try:
            return _serve(model, settings.load(config, overrides, fallbacks=weak_overrides))
        except UsageError as error:
            if not degraded:
                raise
            problem = error
        return _serve_degraded(problem, config, overrides)


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    # Until the server handles signals: an exception could be lost in a callback of an import.
    os._exit(0)


def _serve(model: str, loaded: settings.Loaded) -> int:
    models = loaded.settings.models
    name = models.resolve_alias(model or models.default or STARTER.name)
    server = loaded.settings.server
    with listening(server.host, server.port, server.uds) as sock, open_display() as display:
        check_start(loaded.settings, name)
        prepare(loaded, name, display)
        from omlx_server.process.server import leave, serve

        code = serve(loaded, name, sock, progress=display, ready=partial(_print_ready, display))
    return leave(code)


def _serve_degraded(problem: UsageError, config: Path | None, overrides: Mapping[str, str]) -> int:
    file = config
    with suppress(ConfigError):
        file = config or settings.find_config()
    from omlx_server.process.degraded import serve_degraded

    load_again = partial(settings.load, config, overrides)
    return serve_degraded(problem, salvage(file, overrides), file, load_again)


def _print_ready(display: Display, url: str, model: str) -> None:
    display.close()
    base = url if socket_of(url) else f"{url}/v1"
    print(f"omlx-server is ready: {base} serves {model} (Ctrl-C ends it)", flush=True)
