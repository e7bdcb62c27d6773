"""One model of the pool: its phase, users and waiters."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar

from omlx_server import clock
from omlx_server.core.memory.fit import WEIGHTS_SHARE
from omlx_server.core.memory.ledger import in_words
from omlx_server.errors import QueueFull, Unavailable

# Share for weights and running requests, which no load may cut off.
_HELD_SHARE = 0.95
M = TypeVar("M")

RETRY_SECONDS = 5
_MAX_WAITERS = 128
_SHORTEST_TTL = 0.001  # 0 would mean for ever
# Unused models leave after so many seconds while the machine is very short of memory.
_SHORT_TTL = 30.0


@dataclass(frozen=True, slots=True)
class Resident:
    """A loaded model: bytes of weights and of requests (`live`), last use by clock.now(),
    leases. Unused, it leaves after `ttl` seconds; 0 for never."""

    key: str
    nbytes: int
    used: float
    users: int = 0
    live: int = 0
    pinned: bool = False
    ttl: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """The most bytes and models in memory; 0 for no limit. `is_short`: the machine lacks memory,
    and unused models leave soon."""

    limit: int = 0
    max_loaded: int = 0
    is_short: bool = False


@dataclass(frozen=True, slots=True)
class ResidencyPlan:
    """Keys of the models that leave; or `never`, why that would not suffice."""

    unloaded_keys: tuple[str, ...] = ()
    never: str = ""


def plan_unloads(residents: Sequence[Resident], nbytes: int, rules: Rules) -> ResidencyPlan:
    """Return which models leave for `nbytes` of weights: the longest unused first."""
    # If pinned models leave no room even at rest, it never fits.
    stay = [r for r in residents if r.pinned]
    if not _fits([replace(r, live=0) for r in stay], nbytes, rules):
        return ResidencyPlan(never=_why_it_never_fits(stay, nbytes, rules))
    # Models in use go last.
    movable = sorted((r for r in residents if not r.pinned), key=lambda r: (r.users > 0, r.used))
    leaving = list[Resident]()
    while movable and not _fits([*stay, *movable], nbytes, rules):
        leaving.append(movable.pop(0))
    return ResidencyPlan(tuple(r.key for r in leaving))


def longest_unused(residents: Sequence[Resident]) -> Resident | None:
    idle = (resident for resident in residents if not resident.users)
    return min(idle, key=lambda resident: resident.used, default=None)


def expired(residents: Sequence[Resident], now: float, *, is_short: bool = False) -> list[str]:
    """Return the keys of models that were unused for their ttl. `is_short`: see Rules."""
    most = _SHORT_TTL if is_short else math.inf
    return [
        r.key
        for r in residents
        if not (r.users or r.pinned) and now - r.used >= min(r.ttl or math.inf, most)
    ]


def _fits(residents: Sequence[Resident], nbytes: int, rules: Rules) -> bool:
    if rules.max_loaded and len(residents) + 1 > rules.max_loaded:
        return False
    if not rules.limit:
        return True
    weights = nbytes + sum(r.nbytes for r in residents)
    live = sum(r.live for r in residents)
    return weights <= rules.limit * WEIGHTS_SHARE and weights + live <= rules.limit * _HELD_SHARE


def _why_it_never_fits(pinned: Sequence[Resident], nbytes: int, rules: Rules) -> str:
    if rules.max_loaded and len(pinned) >= rules.max_loaded:
        return f"models.max_loaded is {rules.max_loaded}, and so many models are pinned"
    weights = sum(r.nbytes for r in pinned)
    beside = f" beside pinned models of {in_words(weights)}" if weights else ""
    return (
        f"its weights are {in_words(nbytes)}{beside}, and of memory.limit "
        f"({in_words(rules.limit)}) weights may take {in_words(int(rules.limit * WEIGHTS_SHARE))}"
    )


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
        self.has_failed = False  # it was loaded, and crashed
        self.problem = ""
        self.model: M | None = None
        self.read_bytes = 0  # of its weights, by the newest load
        self.users = 0
        self.loads = 0  # how often it was loaded
        self.used = clock.now()  # at the end of its last use
        self.keep_seconds: float | None = None
        self.waiters: list[asyncio.Future[Lease[M]]] = []
        self.has_told_to_retry = False  # a client was told to come back
        self.load_task: asyncio.Task[None] | None = None
        self.unload_task: asyncio.Task[None] | None = None
        self._released = released

    def note_read(self, nbytes: int) -> None:
        # Some weights are looked at twice: those of GGUF files, and what shares arrays.
        self.read_bytes = min(self.wanted.nbytes, self.read_bytes + nbytes)

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
        most = self.wanted.ttl or math.inf
        seconds = min(max(self.keep_seconds, _SHORTEST_TTL), most)
        return 0.0 if math.isinf(seconds) else seconds

    def resident(self, live: int) -> Resident:
        wanted = self.wanted
        return Resident(
            wanted.key, wanted.nbytes, self.used, self.users, live, self.is_pinned, self.ttl
        )

    def lease(self) -> Lease[M]:
        assert self.model is not None
        self.users += 1
        self.used = clock.now()
        return Lease(self.model, self._release)

    def _release(self) -> None:
        self.users -= 1
        self.used = clock.now()
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
            async with clock.timeout(patience):
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
