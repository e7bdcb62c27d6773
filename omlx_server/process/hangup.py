"""SIGHUP, which means two things: look at your config, and your terminal is gone."""

import asyncio
import os
import signal
from contextlib import suppress


class Hangup:
    """The signal ends nobody from here on. Made and used on the event loop's thread."""

    def __init__(self) -> None:
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as by nohup
        self._minds_terminal = _has_terminal() and not ignored
        self._came = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._came.set)

    async def within(self, seconds: float) -> bool:
        """Whether it comes, or has come; waits no longer than this."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._came.wait(), seconds)
        came = self._came.is_set()
        self._came.clear()
        return came

    @property
    def terminal_is_gone(self) -> bool:
        """In which the process ran: nobody is left who could stop it with Ctrl-C."""
        return self._minds_terminal and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
