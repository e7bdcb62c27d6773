"""Memory that requests have used and freed goes back to the system.

The allocator keeps it: after a dozen texts of 1 MB the process had 800 MB more than it needed. When
nobody is served, giving it back harms nobody; a server that is never idle does it as well, but for
more. Lives on the event loop; the work is done in another thread.
"""

import asyncio
import logging
from collections.abc import Callable

from omlx_server.compute.hardware import heap

_log = logging.getLogger(__name__)
SECONDS = 5.0
GROWN = 32 << 20
GROWN_AT_WORK = 256 << 20


class Freed:
    """`is_idle`: whether nobody is served. `resident` and `give_back` are those of the process."""

    def __init__(
        self,
        is_idle: Callable[[], bool],
        resident: Callable[[], int] = heap.resident_bytes,
        give_back: Callable[[], None] = heap.return_freed,
    ) -> None:
        self._is_idle = is_idle
        self._resident = resident
        self._give_back = give_back
        # What is used at work says little of what is needed at rest, so each has its own measure.
        self._at_rest = self._at_work = resident()

    async def watch(self) -> None:
        """Look now and then, without an end."""
        while True:
            await asyncio.sleep(SECONDS)
            await asyncio.to_thread(self.look, is_idle=self._is_idle())

    def look(self, *, is_idle: bool) -> None:
        """Give back what was freed, if the process has grown since that was done."""
        before = self._resident()
        self._at_rest = min(self._at_rest, before)
        self._at_work = min(self._at_work, before)
        if before - self._at_work < GROWN_AT_WORK and not (
            is_idle and before - self._at_rest >= GROWN
        ):
            return
        self._give_back()
        after = self._resident()
        _log.debug("of %d MB resident memory %d MB went back", before >> 20, before - after >> 20)
        self._at_work = after
        if is_idle:
            self._at_rest = after
