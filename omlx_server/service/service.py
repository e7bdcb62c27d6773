"""The background service as a value made from settings and paths."""

import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx_server.errors import UsageError
from omlx_server.service.environment import HF_HOME, Environment, is_sayable
from omlx_server.settings import Loaded
from omlx_server.settings.types import own_place

LOG_NAME = "server.log"
STATE = "~/.local/state/omlx_server"
# After the grace of the requests the cold tier is written (10 s at most) and the process ends.
_AFTER_GRACE_SECONDS = 20
# server.shutdown_grace_seconds may be an hour.
LONGEST_STOP_SECONDS = 3600 + _AFTER_GRACE_SECONDS


@dataclass(frozen=True, slots=True)
class Service:
    """All paths are absolute; nothing is secret. The server may write below `writable`; `own`
    are those that installing creates."""

    command: tuple[str, ...]
    home: Path
    log: Path
    own: tuple[Path, ...]
    writable: tuple[Path, ...]
    stop_seconds: int
    variables: tuple[tuple[str, str], ...]


def service_of(
    loaded: Loaded, *, python: Path, home: Path, log_dir: Path, environment: Environment
) -> Service:
    """Return the service of `loaded`. Relative paths count from `home`; `log_dir` is for logs
    without logging.file. Raises UsageError for control characters in a path."""
    assert loaded.source is not None
    settings = loaded.settings
    config, log_file = home / loaded.source, settings.logging.file
    log = home / log_file if log_file else log_dir / LOG_NAME
    directories_made = [*settings.models.dirs, settings.responses.directory, log.parent]
    directories_made.append(own_place(STATE, home))
    if settings.cache.has_cold:
        directories_made.append(settings.cache.cold_dir)
    directories_made += environment.directories
    directories = _distinct(home, directories_made)
    others = [config.parent, own_place("~/.config/omlx_server", home)]
    if HF_HOME not in dict(environment.variables):
        others.append(home / ".cache" / "huggingface")
    if settings.server.uds:
        others.append((home / settings.server.uds).parent)
    writable = _distinct(home, [*directories, *others])
    command = _command(python, config, None if log_file else log)
    for text in (*command, *map(str, writable), str(home)):
        if not is_sayable(text):
            raise UsageError(
                f"{text!r} has characters that a service's file can't hold",
                hint="choose another path in the config, without control characters",
            )
    return Service(
        command=command,
        home=home,
        log=log,
        own=directories,
        writable=writable,
        stop_seconds=round(settings.server.shutdown_grace_seconds) + _AFTER_GRACE_SECONDS,
        variables=environment.variables,
    )


def _command(python: Path, config: Path, log: Path | None) -> tuple[str, ...]:
    """Return the command line. -P: no file in the working directory is imported as a library."""
    start = (str(python), "-P", "-m", "omlx_server", "serve")
    log_option = ("--set", f"logging.file={log}") if log else ()
    return (*start, "--config", str(config), "--degraded-on-error", *log_option)


def _distinct(home: Path, paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return distinct absolute paths without "..", which systemd ignores."""
    return tuple(dict.fromkeys(Path(os.path.normpath(home / path)) for path in paths))
