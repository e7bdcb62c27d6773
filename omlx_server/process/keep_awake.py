"""Keeps a Mac from idle sleep while requests run, with its own program `caffeinate`."""

import asyncio
import logging
import math
import shutil
import subprocess
import sys
from collections.abc import Callable

from omlx_server import clock

_log = logging.getLogger(__name__)
# It stays for the next turn of a conversation. No Mac sleeps within a minute of the last work.
_LINGER_SECONDS = 30.0
_RETRY_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_END_SECONDS = 2.0
# It holds its assertion while `cat` runs, which ends with our side of its pipe: also when this
# process is killed, or replaced by another program.
_ARGUMENTS = ("-i", "/bin/cat")


def find_program() -> str | None:
    """Return the path of `caffeinate`; None where there is none, as on Linux."""
    return shutil.which("caffeinate") if sys.platform == "darwin" else None


class KeepAwake:
    """Runs `program` while there is work, and a while longer. asyncio thread."""

    def __init__(self, program: str | None) -> None:
        self._program = program
        self._child: subprocess.Popen[bytes] | None = None
        self._needed_until = self._started_at = -math.inf

    @property
    def is_awake(self) -> bool:
        return self._child is not None and self._child.poll() is None

    async def watch(self, has_work: Callable[[], bool]) -> None:
        """Look once a second, until cancelled."""
        try:
            while True:
                self.look(clock.now(), has_work=has_work())
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self.end()

    def look(self, now: float, *, has_work: bool) -> None:
        if has_work:
            self._needed_until = now + _LINGER_SECONDS
        if now >= self._needed_until:
            self.end()
        elif self._program and not self.is_awake and now >= self._started_at + _RETRY_SECONDS:
            self.end()
            self._started_at = now
            self._start(self._program)

    def end(self) -> None:
        child, self._child, self._started_at = self._child, None, -math.inf
        if child is None:
            return
        try:
            child.communicate(timeout=_END_SECONDS)  # which closes its stdin
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _start(self, program: str) -> None:
        command, pipe, quiet = [program, *_ARGUMENTS], subprocess.PIPE, subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(command, stdin=pipe, stdout=quiet, stderr=quiet)
        except OSError as error:
            _log.warning("this Mac may sleep while requests run: %s: %s", program, error)
