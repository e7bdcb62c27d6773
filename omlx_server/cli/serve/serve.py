"""`omlx-server serve`: settings and a progress bar in, then the built server until it ends."""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from omlx_server import settings
from omlx_server.cli.server_client.unix import socket_of
from omlx_server.cli.shell.options import load_settings, overrides_of
from omlx_server.cli.shell.progress import Display, open_display
from omlx_server.errors import ConfigError, UsageError
from omlx_server.settings.salvage import salvage

STARTER = "starter"


def run(
    *,
    model: str,
    flags: Mapping[str, str | None],
    config: Path | None,
    sets: Sequence[str],
    degraded_on_error: bool = False,
) -> int:
    """`flags` by the keys of the settings that they stand for. What can be mended while the program
    runs is no reason to end with `degraded_on_error`."""
    with _sigterm_is_no_crash():
        try:
            return _serve(model, flags, config, sets)
        except UsageError as error:
            if not degraded_on_error:
                raise
            problem = error
        return _serve_degraded(problem, flags, config, sets)


@contextmanager
def _sigterm_is_no_crash() -> Iterator[None]:
    """What is imported takes seconds, a model may be fetched for minutes: until the server has its
    own way to end, nobody waits for anything."""
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: FrameType | None) -> None:
    # An exception would be lost where it happens to meet a callback of the imports.
    os._exit(0)


def _serve(
    model: str, flags: Mapping[str, str | None], config: Path | None, sets: Sequence[str]
) -> int:
    loaded = load_settings(config, sets, flags)
    name = model or loaded.settings.models.default or STARTER
    with open_display() as display:
        from omlx_server.process.server import serve

        return serve(loaded, name, progress=display, ready=partial(_ready, display))


def _serve_degraded(
    problem: UsageError,
    flags: Mapping[str, str | None],
    config: Path | None,
    sets: Sequence[str],
) -> int:
    """Raises UsageError for a flag that is wrong: no change of the config would mend it."""
    overrides = overrides_of(sets, flags)
    file = config or _found_config()
    from omlx_server.process.degraded import serve_degraded

    check = partial(settings.load, config, overrides)
    return serve_degraded(problem, salvage(file, overrides), file, check)


def _found_config() -> Path | None:
    try:
        return settings.find_config()
    except ConfigError:
        return None


def _ready(display: Display, url: str, model: str) -> None:
    display.close()
    base = url if socket_of(url) else f"{url}/v1"
    print(f"omlx-server is ready: {base} serves {model} (Ctrl-C ends it)", flush=True)
