"""One model of the pool: its phase, users and waiters."""

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
_SHORTEST_TTL = 0.001  # 0 would mean for ever


class Phase(StrEnum):
    """Where a model is between disk and memory."""

    ABSENT = "absent"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model before its load. Unused, it stays for `ttl` seconds; 0 for ever."""

    key: str
    nbytes: int
    pinned: bool = False
    ttl: float = 0.0
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.key


class Lease(Generic[M]):
    """A use of a model, which stays loaded until the lease is released."""

    def __init__(self, model: M, release: Callable[[], None]) -> None:
        self.model = model
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class PoolEntry(Generic[M]):
    """One model that was asked for. `released` is set when a user or waiter has gone."""

    def __init__(self, wanted: ModelRequest, released: asyncio.Event) -> None:
        self.wanted = wanted
        self.pinned: bool | None = None  # by ModelPool.pin; None: as `wanted` says
        self.phase = Phase.ABSENT
        self.has_failed = False  # after it was loaded
        self.problem = ""
        self.model: M | None = None
        self.users = 0
        self.loads = 0
        self.used = time.monotonic()  # last
        self.keep_seconds: float | None = None
        self.waiters: list[asyncio.Future[Lease[M]]] = []
        self.has_told_to_retry = False  # some client, which will come back
        self.load_task: asyncio.Task[None] | None = None
        self.unload_task: asyncio.Task[None] | None = None
        self._released = released

    @property
    def is_pinned(self) -> bool:
        return self.wanted.pinned if self.pinned is None else self.pinned

    @property
    def is_wanted(self) -> bool:
        return bool(self.waiters) or self.has_told_to_retry

    @property
    def ttl(self) -> float:
        """Seconds that it stays unused; 0 for ever."""
        if self.keep_seconds is None:
            return self.wanted.ttl
        seconds = min(max(self.keep_seconds, _SHORTEST_TTL), self.wanted.ttl or math.inf)
        return 0.0 if math.isinf(seconds) else seconds

    def resident(self, live: int) -> Resident:
        wanted = self.wanted
        return Resident(
            wanted.key, wanted.nbytes, self.used, self.users, live, self.is_pinned, self.ttl
        )

    def lease(self) -> Lease[M]:
        assert self.model is not None
        self.users += 1
        self.used = time.monotonic()
        return Lease(self.model, self._release)

    def _release(self) -> None:
        self.users -= 1
        self.used = time.monotonic()
        self._released.set()

    def add_waiter(self) -> asyncio.Future[Lease[M]]:
        """Add a waiter. Raises QueueFull when 128 wait already."""
        if len(self.waiters) >= _MAX_WAITERS:
            raise QueueFull(
                f"{len(self.waiters)} requests wait for this model", retry_after=RETRY_SECONDS
            )
        waiter: asyncio.Future[Lease[M]] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        return waiter

    async def wait(self, waiter: asyncio.Future[Lease[M]], patience: float | None) -> Lease[M]:
        """Raises Unavailable after `patience` seconds, or the error of `fail_waiters`."""
        lease: Lease[M] | None = None
        try:
            async with asyncio.timeout(patience):
                lease = await waiter
            return lease
        except TimeoutError:
            self.has_told_to_retry = True
            raise Unavailable(
                "the model is still being loaded", retry_after=RETRY_SECONDS
            ) from None
        finally:
            # The lease may have come when this task was cancelled: nobody will use it.
            is_answered = waiter.done() and not waiter.cancelled()
            if lease is None and is_answered and waiter.exception() is None:
                waiter.result().release()
            if waiter in self.waiters:
                self.waiters.remove(waiter)
                self._released.set()  # a drain for this waiter alone may end

    def give_leases(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(self.lease())
        self.waiters.clear()

    def fail_waiters(self, error: BaseException) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.waiters.clear()

    def reopen(self) -> None:
        """Let clients use it again after an unload that was planned did not happen."""
        if self.model is not None and not (self.has_failed or self.unload_task):
            self.phase = Phase.LOADED
            self.give_leases()
