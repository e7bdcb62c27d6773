"""SIGHUP, which means either "reload your config" or "your terminal is gone"."""

import asyncio
import os
import signal
from contextlib import suppress


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
