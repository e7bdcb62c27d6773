"""The one account of the memory: what all models hold together. Lives on the mlx thread.

Each model has a seat. Through it its guard sees what the others hold, and what they can let go.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from omlx_server.core.eviction import Budget
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.prefix_cache import PrefixCache

BudgetOf = Callable[[int], Budget]
"""The hot tier's budget, by the bytes of the weights of all models."""


class Tenant(Protocol):
    """A model at work: its lane."""

    cache: PrefixCache

    @property
    def has_work(self) -> bool: ...
    @property
    def promised(self) -> int: ...
    def account(self) -> Ledger: ...
    def drop_evicted(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Held:
    """Of the other models, as a step is planned."""

    live: int = 0
    promised: int = 0
    pending: int = 0


class Account:
    """`limit` bytes for all. Weights count from the moment on in which they begin to be loaded."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
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
    def seats(self) -> tuple["Seat", ...]:
        return tuple(self._seats)

    def held(self) -> Ledger:
        """What all hold, as one; limit and pool aside."""
        return sum((s.held() for s in self._seats), Ledger(self.limit, self.weights))

    def rebudget(self) -> None:
        """The weights or the settings have changed, and with them what remains for hot tiers."""
        weights = self.weights
        for seat in self._seats:
            seat.rebudget(weights)

    def trim(self) -> None:
        """All hot tiers together stay within the budget: those of models that were used longest ago
        shrink first."""
        budgets = [s.budget.nbytes for s in self._seats if s.tenant]
        tiers = [s for s in self._seats if s.tenant]
        excess = sum(s.own_hot for s in tiers) - min(budgets, default=0)
        for seat in sorted(tiers, key=lambda s: (s.is_busy, s.used)) if excess > 0 else ():
            excess -= seat.shrink(excess, 0)


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
        self._others = _Held(others.live, promised, others.pending)

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
