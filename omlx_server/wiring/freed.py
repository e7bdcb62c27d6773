"""Gives freed memory back to the operating system: after a dozen texts of 1 MB the allocator kept
800 MB. It runs on the event loop, its work in a worker thread."""

import asyncio
import logging
from collections.abc import Callable

from omlx_server.compute.hardware import heap

_log = logging.getLogger(__name__)
# Seconds between looks, and the growth in bytes that counts while idle and at work.
SECONDS = 5.0
GROWN = 32 << 20
GROWN_AT_WORK = 256 << 20


class Freed:
    """Watches the resident memory of the process."""

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        # Least resident bytes since memory was given back: while idle, and ever.
        self._at_rest = self._at_work = heap.resident_bytes()

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(SECONDS)
            await asyncio.to_thread(self.look, is_idle=self._is_idle())

    def look(self, *, is_idle: bool) -> None:
        """Give freed memory back if the process has grown enough."""
        before = heap.resident_bytes()
        self._at_rest = min(self._at_rest, before)
        self._at_work = min(self._at_work, before)
        if before - self._at_work < GROWN_AT_WORK and not (
            is_idle and before - self._at_rest >= GROWN
        ):
            return
        heap.return_freed()
        after = heap.resident_bytes()
        _log.debug("of %d MB resident memory %d MB went back", before >> 20, before - after >> 20)
        self._at_work = after
        if is_idle:
            self._at_rest = after
