"""One model of the pool: whether it is there, who uses it and who waits for it. Lives on the event
loop's thread.

A model that has users stays. All who wait for it get their leases at once, in the moment in which
it can be had. Whether it comes or goes is for the pool to say (engine/pool/pool.py).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from omlx_server.engine.pool.residency import Resident
from omlx_server.errors import QueueFull, Unavailable

M = TypeVar("M")

RETRY_SECONDS = 5
_MAX_WAITERS = 128


class Phase(StrEnum):
    ABSENT = "absent"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the pool has to know of a model before it is loaded; `nbytes` of weights."""

    key: str
    nbytes: int
    pinned: bool = False
    ttl: float = 0.0
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.key


class Lease(Generic[M]):
    """A model that stays as long as this is not released. Idempotent."""

    def __init__(self, model: M, release: Callable[[], None]) -> None:
        self.model = model
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class Entry(Generic[M]):
    """One model that was asked for at least once. `released` is set when somebody uses it no more,
    or waits no more."""

    def __init__(self, wanted: Wanted, released: asyncio.Event) -> None:
        self.wanted = wanted
        self.pinned: bool | None = None  # by hand
        self.phase = Phase.ABSENT
        self.broken = False
        self.problem = ""
        self.model: M | None = None
        self.users = 0
        self.loads = 0
        self.used = time.monotonic()
        self.waiters: list[asyncio.Future[Lease[M]]] = []
        self.sent_away = False  # somebody was told to come again for it
        self.coming: asyncio.Task[None] | None = None
        self.going: asyncio.Task[None] | None = None
        self._released = released

    @property
    def is_pinned(self) -> bool:
        return self.wanted.pinned if self.pinned is None else self.pinned

    @property
    def is_wanted(self) -> bool:
        return bool(self.waiters) or self.sent_away

    def resident(self, live: int) -> Resident:
        """What decides who leaves; its requests need so many bytes."""
        wanted = self.wanted
        return Resident(
            wanted.key, wanted.nbytes, self.used, self.users, live, self.is_pinned, wanted.ttl
        )

    # -- who uses it ---------------------------------------------------------------------

    def lease(self) -> Lease[M]:
        """For one more user; it must be there."""
        assert self.model is not None
        self.users += 1
        self.used = time.monotonic()
        return Lease(self.model, self._release)

    def _release(self) -> None:
        self.users -= 1
        self.used = time.monotonic()
        self._released.set()

    # -- who waits for it ----------------------------------------------------------------

    def queue(self) -> asyncio.Future[Lease[M]]:
        """A waiter for `wait`. Raises QueueFull when there are too many."""
        if len(self.waiters) >= _MAX_WAITERS:
            raise QueueFull(
                f"{len(self.waiters)} requests wait for this model", retry_after=RETRY_SECONDS
            )
        waiter: asyncio.Future[Lease[M]] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        return waiter

    async def wait(self, waiter: asyncio.Future[Lease[M]], patience: float | None) -> Lease[M]:
        """Raises Unavailable when it does not come in time, and what its waiters are told."""
        lease: Lease[M] | None = None
        try:
            async with asyncio.timeout(patience):
                lease = await waiter
            return lease
        except TimeoutError:
            self.sent_away = True
            raise Unavailable(
                "the model is still being loaded", retry_after=RETRY_SECONDS
            ) from None
        finally:
            if lease is None and waiter.done() and not waiter.cancelled():
                _give_back(waiter)  # it came in the moment in which nobody waited any more
            if waiter in self.waiters:
                self.waiters.remove(waiter)
                self._released.set()  # a drain for nobody else may end

    def let_in(self) -> None:
        """It can be had: whoever waits has a lease."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(self.lease())
        self.waiters.clear()

    def turn_away(self, error: BaseException) -> None:
        """Whoever waits is told what went wrong, and raises it."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.waiters.clear()

    def reopen(self) -> None:
        """It was to go and stays: if it is still there, it can be had again."""
        if self.model is not None and not (self.broken or self.going):
            self.phase = Phase.LOADED
            self.let_in()


def _give_back(waiter: "asyncio.Future[Lease[M]]") -> None:
    if waiter.exception() is None:
        waiter.result().release()
