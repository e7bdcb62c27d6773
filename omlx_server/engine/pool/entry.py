"""One model of the pool: whether it is loaded, how many use it and who waits for it. Lives on the
event loop's thread.

A model that has users stays. When it is loaded, all who wait for it get their leases at once. The
pool (engine/pool/pool.py) decides whether it is loaded or unloaded.
"""

import asyncio
import math
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
_SHORTEST_TTL = 0.001  # 0 would mean any time


class Phase(StrEnum):
    ABSENT = "absent"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What the pool has to know of a model before it is loaded: `nbytes` of weights, and for how
    many seconds (`ttl`) it stays unused; 0 for any time."""

    key: str
    nbytes: int
    pinned: bool = False
    ttl: float = 0.0
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.key


class Lease(Generic[M]):
    """A use of a model, which stays loaded until the lease is released. Releasing is idempotent."""

    def __init__(self, model: M, release: Callable[[], None]) -> None:
        self.model = model
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class PoolEntry(Generic[M]):
    """One model that was asked for at least once. The event `released` is set whenever a user has
    released it, or one that waited waits no more. `used` is its last use, by time.monotonic().
    `keep_seconds`: how long the last client that said so wants it kept unused, infinity for any
    time; None where none did since it was loaded."""

    def __init__(self, wanted: ModelRequest, released: asyncio.Event) -> None:
        self.wanted = wanted
        self.pinned: bool | None = None  # by ModelPool.pin; None: as `wanted` says
        self.phase = Phase.ABSENT
        self.broken = False
        self.problem = ""
        self.model: M | None = None
        self.users = 0
        self.loads = 0
        self.used = time.monotonic()
        self.keep_seconds: float | None = None
        self.waiters: list[asyncio.Future[Lease[M]]] = []
        self.sent_away = False  # a request was told to come again while it is loaded
        self.coming: asyncio.Task[None] | None = None
        self.going: asyncio.Task[None] | None = None
        self._released = released

    @property
    def is_pinned(self) -> bool:
        return self.wanted.pinned if self.pinned is None else self.pinned

    @property
    def is_wanted(self) -> bool:
        return bool(self.waiters) or self.sent_away

    @property
    def ttl(self) -> float:
        """For how many seconds it stays unused; 0 for any time. A client can shorten what `wanted`
        says, and not lengthen it."""
        if self.keep_seconds is None:
            return self.wanted.ttl
        seconds = min(max(self.keep_seconds, _SHORTEST_TTL), self.wanted.ttl or math.inf)
        return 0.0 if math.isinf(seconds) else seconds

    def resident(self, live: int) -> Resident:
        """What decides whether this model leaves; `live` is the bytes that its requests need."""
        wanted = self.wanted
        return Resident(
            wanted.key, wanted.nbytes, self.used, self.users, live, self.is_pinned, self.ttl
        )

    # -- who uses it ---------------------------------------------------------------------

    def lease(self) -> Lease[M]:
        """A lease for one more user of the model, which must be loaded."""
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
        """A new waiter, for `wait`. Raises QueueFull when 128 wait already."""
        if len(self.waiters) >= _MAX_WAITERS:
            raise QueueFull(
                f"{len(self.waiters)} requests wait for this model", retry_after=RETRY_SECONDS
            )
        waiter: asyncio.Future[Lease[M]] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        return waiter

    async def wait(self, waiter: asyncio.Future[Lease[M]], patience: float | None) -> Lease[M]:
        """Wait for a lease, at most `patience` seconds if not None. Raises Unavailable when the
        model does not come in time, and the error given to `turn_away`."""
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
        """Give a lease to each one that waits, because the model is loaded."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(self.lease())
        self.waiters.clear()

    def turn_away(self, error: BaseException) -> None:
        """Raise `error` in each one that waits."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.waiters.clear()

    def reopen(self) -> None:
        """Note that the model does not leave after all: if it is still loaded, it can be used."""
        if self.model is not None and not (self.broken or self.going):
            self.phase = Phase.LOADED
            self.let_in()


def _give_back(waiter: "asyncio.Future[Lease[M]]") -> None:
    if waiter.exception() is None:
        waiter.result().release()
