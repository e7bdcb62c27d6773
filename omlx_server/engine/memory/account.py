"""The one account of the memory: what all models hold together. Lives on the mlx thread.

Each model has a seat. Through it its guard sees what the others hold, and what they can let go.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.prefix_cache.eviction import Budget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.work import Work

BudgetOf = Callable[[int], Budget]
"""The hot tier's budget, by the bytes of the weights of all models."""


def _nothing() -> int:
    return 0


class Tenant(Protocol):
    """A model at work: its lane."""

    cache: PrefixCache

    @property
    def has_work(self) -> bool: ...
    @property
    def promised(self) -> int: ...
    @property
    def step(self) -> int: ...
    def account(self) -> Ledger: ...
    def drop_evicted(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Held:
    """Of the other models and of all jobs, as a step is planned."""

    live: int = 0
    promised: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A job that waits for so much room."""

    nbytes: int


class Account:
    """`limit` bytes for all, of which `queue` are kept for what goes to the cold tier. Weights
    count from the moment on in which they begin to be loaded.

    left     what is on its way to the cold tier from models that have left
    aside    what jobs take that are under way (engine/memory/reservations.py)
    waiting  what those will take that wait for room, the first of them first
    """

    def __init__(self, limit: int, queue: int = 0, left: Callable[[], int] = _nothing) -> None:
        self.limit = limit
        self.queue = queue
        self.left = left
        self.aside = 0
        self.waiting: list[Waiting] = []
        self._seats: list[Seat] = []
        self.clock = count(1)

    def seat(self, weights: int) -> "Seat":
        """A place for one more model."""
        seat = Seat(self, weights)
        self._seats.append(seat)
        self.rebudget()
        return seat

    def leave(self, seat: "Seat") -> None:
        """Its memory was given back."""
        self._seats.remove(seat)
        self.rebudget()

    @property
    def weights(self) -> int:
        return sum(seat.weights for seat in self._seats)

    @property
    def awaited(self) -> int:
        return sum(one.nbytes for one in self.waiting)

    @property
    def seats(self) -> tuple["Seat", ...]:
        return tuple(self._seats)

    def held(self) -> Ledger:
        """What all hold, as one; the pool aside."""
        return sum((s.held() for s in self._seats), self.beside())

    def beside(self) -> Ledger:
        """What is held and is no model's: of the account without what any of them says."""
        return Ledger(self.limit, self.weights, live=self.aside, pending=self.left())

    def most(self) -> int:
        """What a job could take if nobody else were at work."""
        return self.limit - self.weights - self.queue - self._least

    def most_without_others(self, seat: "Seat") -> int:
        """The same if no other model were loaded than the one of that seat."""
        least = max(seat.pinned, self._floor_beside(seat.weights))
        return self.limit - seat.weights - self.queue - least

    def free(self) -> int:
        """What a job may take now: nothing of what others were promised."""
        tenants = [s.tenant for s in self._seats if s.tenant]
        accounts = [tenant.account() for tenant in tenants]
        held = sum(accounts, Ledger(pending=self.left()))
        lanes = sum(max(a.live, t.promised) for a, t in zip(accounts, tenants, strict=True))
        hot = held.blocks + held.checkpoints
        step = max((tenant.step for tenant in tenants if tenant.has_work), default=0)
        taken = self.weights + lanes + self.aside + hot + max(self.queue, held.pending) + step
        return self.limit - taken

    def settling(self) -> Work[None]:
        """After a seat was given: until jobs have ended that take what is its own now."""
        yield
        while self.aside and self.free() < 0:
            yield

    @property
    def floor(self) -> int:
        """Below this the hot tiers do not shrink for anybody."""
        return self._floor_beside(self.weights)

    def _floor_beside(self, weights: int) -> int:
        return max(0, self.limit - weights) // 20

    @property
    def _least(self) -> int:
        """What the hot tiers hold at least: pinned blocks stay, too."""
        pinned = [seat.pinned for seat in self._seats if seat.tenant]
        return sum(max(held, self.floor // len(pinned)) for held in pinned) or self.floor

    @property
    def is_busy(self) -> bool:
        """Whether a model has requests at work, whose caches grow."""
        return any(seat.tenant and seat.tenant.has_work for seat in self._seats)

    @property
    def spare(self) -> int:
        """What the hot tiers hold above their floor."""
        return max(0, sum(seat.own_hot for seat in self._seats) - self._least)

    def shrink(self, nbytes: int) -> None:
        """Let so much of the hot tiers go, as far as their floor: of models at rest first, the
        longest unused before others."""
        tiers = self._tiers()
        for seat in tiers:
            nbytes -= seat.shrink(nbytes, self.floor // len(tiers))

    def _tiers(self) -> "list[Seat]":
        """Models with a hot tier, in the order in which they let go."""
        return sorted((s for s in self._seats if s.tenant), key=lambda s: (s.is_busy, s.used))

    def rebudget(self) -> None:
        """The weights or the settings have changed, and with them what remains for hot tiers."""
        weights = self.weights
        for seat in self._seats:
            seat.rebudget(weights)

    def trim(self) -> None:
        """All hot tiers together stay within the budget, of bytes and of buffers: those of models
        that were used longest ago shrink first."""
        tiers = self._tiers()
        excess = sum(s.own_hot for s in tiers) - min((s.budget.nbytes for s in tiers), default=0)
        for seat in tiers if excess > 0 else ():
            excess -= seat.shrink(excess, 0)
        most = min((s.budget.buffers for s in tiers), default=0)
        excess = sum(s.own_buffers for s in tiers) - most
        for seat in tiers if excess > 0 else ():
            excess -= seat.shrink_buffers(excess)


class Seat:
    """One model's part of the account, and the neighbours of its guard."""

    def __init__(self, account: Account, weights: int) -> None:
        self.account = account
        self.weights = weights
        self.tenant: Tenant | None = None
        self.is_loading = True
        self.budget = Budget(0, 0)
        self.used = 0
        self._budget_of: BudgetOf = lambda weights: Budget(0, 0)
        self._others = _Held()

    def weigh(self, weights: int) -> None:
        """The weights are there, and their size is known."""
        self.weights, self.is_loading = weights, False
        self.account.rebudget()

    def settle(self, weights: int, budget_of: BudgetOf) -> None:
        """The same, and from now on there is a hot tier of such a budget."""
        self._budget_of = budget_of
        self.weigh(weights)

    def rebudget(self, weights: int) -> None:
        self.budget = self._budget_of(weights)
        if self.tenant is not None:
            self.tenant.cache.budget = self.budget
            self.tenant.drop_evicted()

    def leave(self) -> None:
        self.tenant = None
        self.account.leave(self)

    def begin(self) -> None:
        """A step of this model is about to be planned."""
        self.used = next(self.account.clock)
        others = sum((seat.held() for seat in self._tenants()), Ledger())
        promised = sum(s.tenant.promised for s in self._tenants() if s.tenant)
        aside, awaited = self.account.aside, self.account.awaited
        pending = others.pending + self.account.left()
        self._others = _Held(others.live + aside, promised + aside + awaited, pending)

    def held(self) -> Ledger:
        return self.tenant.account() if self.tenant else Ledger()

    @property
    def is_busy(self) -> bool:
        return self.tenant is not None and self.tenant.has_work

    def shrink(self, nbytes: int, floor: int) -> int:
        """Let so much of the hot tier go. Returns what went."""
        if self.tenant is None or nbytes <= 0:
            return 0
        before = self.tenant.cache.index.nbytes
        self.tenant.cache.make_room(nbytes, floor)
        self.tenant.drop_evicted()
        return before - self.tenant.cache.index.nbytes

    def shrink_buffers(self, count: int) -> int:
        """Let go of what has so many buffers. Returns how many went."""
        if self.tenant is None or count <= 0:
            return 0
        cache, before = self.tenant.cache, self.own_buffers
        cache.budget = replace(self.budget, buffers=max(0, before - count))
        cache.budget = self.budget
        self.tenant.drop_evicted()
        return before - self.own_buffers

    # -- neighbours ----------------------------------------------------------------------

    @property
    def count(self) -> int:
        return sum(1 for _ in self._tenants())

    @property
    def live(self) -> int:
        return self._others.live

    @property
    def promised(self) -> int:
        return self._others.promised

    @property
    def pending(self) -> int:
        return self._others.pending

    @property
    def hot(self) -> int:
        """Of the neighbours, now."""
        return sum(seat.own_hot for seat in self._tenants())

    @property
    def own_hot(self) -> int:
        return self.tenant.cache.index.nbytes if self.tenant else 0

    @property
    def pinned(self) -> int:
        """What of it never goes."""
        return self.tenant.cache.pinned_bytes if self.tenant else 0

    @property
    def own_buffers(self) -> int:
        return self.tenant.cache.index.buffers if self.tenant else 0

    @property
    def at_work(self) -> bool:
        return self._others.live > 0 or any(seat.is_loading for seat in self.account.seats)

    def make_room(self, nbytes: int, floor: int, *, at_rest: bool) -> int:
        gone = 0
        for seat in sorted(self._tenants(), key=lambda s: s.used):
            if seat.is_busy != at_rest:
                gone += seat.shrink(nbytes - gone, floor)
        return gone

    def _tenants(self) -> Iterator["Seat"]:
        return (s for s in self.account.seats if s is not self and s.tenant is not None)
