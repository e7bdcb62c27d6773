"""The servers of this user that run now. Light: all commands import it.

Each is a file below the user's home, where nobody else can write. Its process locks it, so a killed
one leaves no false trace.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from urllib.parse import quote, unquote

from omlx_server.errors import PlaceUnusable
from omlx_server.settings.types import own_place
from omlx_server.settings.whole_file import OTHERS, PRIVATE_DIRECTORY

_DIRECTORY = "~/.local/state/omlx_server/running"
_TRIES, _PAUSE_SECONDS = 20, 0.05
# Wildcard addresses, and those at which this machine reaches them.
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def http_url(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens at `host`."""
    host = WILDCARDS.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextmanager
def announcing(name: str) -> Iterator[None]:
    """Let commands find a server, until the `with` or this process ends. Its name is its URL, or
    PORT-NEW_PORT where `up` gave it another port than the configured one."""
    file: TextIOWrapper | None = None
    with suppress(OSError, PlaceUnusable):  # commands then need --url, and send it no stored key
        path = own_place(_DIRECTORY) / quote(name, safe=":")
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        for left in path.parent.iterdir():
            if not _is_locked(left):
                left.unlink(missing_ok=True)
        file = _lock(path)
    try:
        yield
    finally:
        if file is not None:
            file.close()  # it stays: perhaps nothing may touch the disk any more


def is_announced(url: str) -> bool:
    """Whether a server of this user listens at exactly this URL, or `unix:PATH`."""
    return any(_is_locked(file) for file in _files(quote(url, safe=":")))


def announced_urls() -> list[str]:
    return [unquote(file.name) for file in _files("http*") if _is_locked(file)]


def moved_ports(port: int) -> list[int]:
    """Return the ports of servers that would have had `port`."""
    return [int(file.name.partition("-")[2]) for file in _files(f"{port}-*") if _is_locked(file)]


def _files(pattern: str) -> list[Path]:
    with suppress(OSError, PlaceUnusable):
        directory = own_place(_DIRECTORY)
        state = directory.stat()
        is_private = state.st_uid == os.geteuid() and not state.st_mode & OTHERS
        if is_private or os.geteuid() == 0:
            return sorted(directory.glob(pattern))
    return []


def _lock(path: Path) -> TextIOWrapper | None:
    """Return the locked file; None if another process keeps it, as in a container."""
    for _ in range(_TRIES):
        file = path.open("w")
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # else just removed
                return file
        file.close()
        time.sleep(_PAUSE_SECONDS)
    return None


def _is_locked(path: Path) -> bool:
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
