"""A pause before a service's start that grows with each start that failed shortly before it.

A service manager starts a failed server again every ten seconds, forever: with a wrong address,
without its disk, after a crash of its interpreter. The file counts starts; a clean end removes it.
"""

import os
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from omlx_server.errors import PlaceUnusable
from omlx_server.service.supervised import START_AGAIN
from omlx_server.settings.types import own_place

_FILE = "~/.local/state/omlx_server/failed_starts"
_FIRST_PAUSE_SECONDS = 10
_LONGEST_PAUSE_SECONDS = 300
# A start that lasted longer has not failed.
_LONG_ENOUGH_SECONDS = 600
_MOST_OUTPUT_BYTES = 1_000_000


def begin(pause: Callable[[float], None] = time.sleep) -> None:
    """Wait if starts have failed, and count this one. A program that starts anew in place keeps
    its process id, and neither waits nor counts."""
    empty_large_output(2)
    with suppress(OSError, PlaceUnusable):  # without a home nothing is counted
        file = own_place(_FILE)
        failures, process = _read(file)
        if process == os.getpid():
            return
        if seconds := pause_seconds(failures):
            sys.stderr.write(f"{failures} starts have failed: the next one is in {seconds} s\n")
            sys.stderr.flush()
            pause(seconds)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(f"{failures + 1} {os.getpid()}")


def pause_seconds(failures: int) -> int:
    """Return the pause after so many failures; the manager itself waits after the first."""
    if failures < 2:
        return 0
    doublings = min(failures - 2, 10)
    return min(_FIRST_PAUSE_SECONDS << doublings, _LONGEST_PAUSE_SECONDS)


def end(code: int) -> None:
    """Forget the failures if the service's process ends in order, or to be started again."""
    with suppress(OSError, PlaceUnusable):
        file = own_place(_FILE)
        if code in (0, START_AGAIN) and _read(file)[1] == os.getpid():
            file.unlink(missing_ok=True)


def _read(file: Path) -> tuple[int, int]:
    """Return the failures of the last minutes, and the process of the last start."""
    with suppress(OSError, ValueError):
        age = time.time() - file.stat().st_mtime
        failures, process = map(int, file.read_text().split())
        return (failures if 0 <= age < _LONG_ENOUGH_SECONDS else 0), process
    return 0, 0


def empty_large_output(fd: int) -> None:
    """Empty the file that stderr goes to if it is large: launchd appends to it without end."""
    with suppress(OSError):
        state = os.fstat(fd)
        if stat.S_ISREG(state.st_mode) and state.st_size > _MOST_OUTPUT_BYTES:
            os.ftruncate(fd, 0)
