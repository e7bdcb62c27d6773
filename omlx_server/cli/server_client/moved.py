"""The ports to which `up` moved, where another program has the configured one.

Each is a file below the user's home. Its `up` locks it, so a killed one leaves no false trace.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

from omlx_server.errors import PlaceUnusable
from omlx_server.settings.types import own_place
from omlx_server.settings.whole_file import PRIVATE_DIRECTORY

_DIRECTORY = "~/.local/state/omlx_server/moved"


@contextmanager
def announcing(port: int, new_port: int) -> Iterator[None]:
    """Let commands find the server at `new_port`, until the `with` or this process ends."""
    file: TextIOWrapper | None = None
    with suppress(OSError, PlaceUnusable):  # commands then need --url
        path = own_place(_DIRECTORY) / f"{port}-{new_port}"
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if file is not None:
            Path(file.name).unlink(missing_ok=True)
            file.close()


def moved_ports(port: int) -> list[int]:
    """Return the ports of servers that would have had `port`."""
    with suppress(OSError, PlaceUnusable):
        files = sorted(own_place(_DIRECTORY).glob(f"{port}-*"))
        return [int(file.name.partition("-")[2]) for file in files if _is_locked(file)]
    return []


def _is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
