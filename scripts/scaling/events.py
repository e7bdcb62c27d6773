"""Simulated time: what happens next, and links that carry one transfer after the other."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


class Events:
    """Calls in the order of their times; of two at one time the one that was planned first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Plan a call for a time, which is not before `now`."""
        heapq.heappush(self._heap, (time, self._planned, call))
        self._planned += 1

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now + seconds, call)

    def run(self, end: float) -> None:
        """Make all calls planned for before `end` seconds, also those planned meanwhile."""
        while self._heap and self._heap[0][0] < end:
            self.now, _, call = heapq.heappop(self._heap)
            call()


@dataclass(slots=True)
class Link:
    """Carries bytes at a `rate` in bytes a second, one transfer after the other. It counts all
    `carried` bytes; `under_way` is how many transfers are, for whoever counts them."""

    rate: float
    carried: int = 0
    under_way: int = 0
    _free_at: float = field(default=0.0, init=False)

    def take(self, now: float, nbytes: int) -> float:
        """Queue a transfer. Returns the time at which it ends."""
        self.carried += nbytes
        self._free_at = max(now, self._free_at) + nbytes / self.rate
        return self._free_at
