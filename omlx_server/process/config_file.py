"""Notices when the config file changes, appears or vanishes."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from omlx_server.errors import ConfigError

POLL_SECONDS = 1.0

_FileState = tuple[Path, int, int, int]  # path, mtime in ns, bytes, inode


class ConfigFile:
    """Watches the config file, whose path `find` returns."""

    def __init__(self, find: Callable[[], Path | None]) -> None:
        self._find = find
        self._remembered: _FileState | None
        self._seen: _FileState | None
        self.remember()

    def remember(self) -> None:
        """Remember the state of the file, before it is read."""
        self._remembered = self._seen = self._state()

    def has_changed(self) -> bool:
        """Return whether the file has changed, and not since the last call. Remembers its state."""
        last_seen, self._seen = self._seen, self._state()
        if self._seen == self._remembered or self._seen != last_seen:
            return False
        self._remembered = self._seen
        return True

    def _state(self) -> _FileState | None:
        try:
            path = self._find()
            status = path.stat() if path else None
        except (ConfigError, OSError):
            return None
        if path is None or status is None:
            return None
        return path, status.st_mtime_ns, status.st_size, status.st_ino


class Hangup:
    """Makes SIGHUP set a flag. Lives on the event loop's thread."""

    def __init__(self) -> None:
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as by nohup
        self._minds_terminal = _has_terminal() and not ignored
        self._came = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._came.set)

    async def comes_within(self, seconds: float) -> bool:
        """Return whether SIGHUP came or comes within `seconds`; clear the flag."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._came.wait(), seconds)
        came = self._came.is_set()
        self._came.clear()
        return came

    @property
    def terminal_is_gone(self) -> bool:
        """Whether the terminal has gone; False without one, or under nohup."""
        return self._minds_terminal and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
