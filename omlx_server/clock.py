"""The server's clock: seconds for which this process ran.

A Mac sleeps when its lid is closed. Python's clock stands still then, the event loop's goes on
(libuv asks mach_continuous_time). In a process that was stopped both jump. Here no jump counts.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_MOST_SECONDS = 2.0  # that count between two looks
_TICK_SECONDS = 0.5
_SLACK_SECONDS = 0.001  # timers round


class Clock:
    """`source` without its jumps, while `tick` runs; else all of it. Any thread."""

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._last_look: float | None = None  # while it ticks
        self._left_out = 0.0

    def now(self) -> float:
        with self._lock:
            seconds = self._source()
            if self._last_look is not None:
                if seconds - self._last_look > _MOST_SECONDS:
                    self._left_out += seconds - self._last_look - _MOST_SECONDS
                self._last_look = seconds
            return seconds - self._left_out

    async def tick(self) -> None:
        """Look often, until cancelled: a longer pause is a jump."""
        self._last_look = self._source()
        try:
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                self.now()
        finally:
            with self._lock:
                self._last_look = None


_CLOCK: Final = Clock()
now = _CLOCK.now
tick = _CLOCK.tick


class Alarm:
    """A timer of the event loop, by this clock. It can be started anew."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        self._loop, self._call, self._end = loop, call, 0.0
        self.has_rung = False
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._handle is not None

    def start(self, seconds: float) -> None:
        self.stop()
        self._end = now() + seconds
        self._ring_when_due()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring_when_due(self) -> None:
        seconds_left = self._end - now()
        if seconds_left > _SLACK_SECONDS:
            self._handle = self._loop.call_later(seconds_left, self._ring_when_due)
        else:
            self._handle, self.has_rung = None, True
            self._call()


@asynccontextmanager
async def timeout(seconds: float | None) -> AsyncIterator[Alarm]:
    """Raise TimeoutError after `seconds` of this clock; None for never. Its alarm may be started
    anew."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as deadline:
        alarm = Alarm(loop, lambda: deadline.reschedule(loop.time()))
        if seconds is not None:
            alarm.start(seconds)
        try:
            yield alarm
        finally:
            alarm.stop()
