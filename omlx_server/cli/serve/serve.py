"""`omlx-server serve`: loads the settings, then runs the server until it ends."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

from omlx_server import settings
from omlx_server.cli.serve.before_start import begin, check_start
from omlx_server.cli.server_client.http import socket_of
from omlx_server.cli.shell.ending import sigterm
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
    overrides, weak = overrides_of(sets or (), flags), overrides_of(fallbacks or (), None)
    with sigterm(_end):
        try:
            return _serve(model, settings.load(config, overrides, fallbacks=weak))
        except UsageError as error:
            if not degraded:
                raise
            problem = error
        return _serve_degraded(problem, config, overrides)


def _end(number: int, frame: FrameType | None) -> None:
    # An exception could be lost in a callback of an import.
    os._exit(0)


def _serve(model: str, loaded: settings.Loaded) -> int:
    models = loaded.settings.models
    name = models.resolve_alias(model or models.default or STARTER.name)
    server = loaded.settings.server
    with listening(server.host, server.port, server.uds) as sock, open_display() as display:
        check_start(loaded.settings, name)
        begin(loaded, name, display)
        from omlx_server.process.server import leave, serve

        code = serve(loaded, name, sock, progress=display, ready=partial(_ready, display))
    return leave(code)


def _serve_degraded(problem: UsageError, config: Path | None, overrides: Mapping[str, str]) -> int:
    file = config
    with suppress(ConfigError):
        file = config or settings.find_config()
    from omlx_server.process.degraded import serve_degraded

    check = partial(settings.load, config, overrides)
    return serve_degraded(problem, salvage(file, overrides), file, check)


def _ready(display: Display, url: str, model: str) -> None:
    display.close()
    base = url if socket_of(url) else f"{url}/v1"
    print(f"omlx-server is ready: {base} serves {model} (Ctrl-C ends it)", flush=True)
