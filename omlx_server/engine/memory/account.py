"""One account of the memory of all models, in bytes."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from omlx_server.compute.hardware import device
from omlx_server.core.interval import Interval
from omlx_server.core.memory.estimate import Planner
from omlx_server.core.memory.guard import MemoryGuard, Relief
from omlx_server.core.memory.kv import StepShape
from omlx_server.core.memory.ledger import DRIFT, Ledger, MemoryReport, hot_floor_bytes
from omlx_server.core.memory.pressure import NO_PRESSURE, MemoryPressure
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.work import Work
from omlx_server.engine.memory.image_features import KeptFeatures
from omlx_server.engine.messages import Counted

BudgetOf = Callable[[int], HotBudget]
_CHECK_SECONDS = 1.0


class MemoryHolder(Protocol):
    """A model that holds memory; `step_bytes` is what its current step was planned to take."""

    cache: PrefixCache
    features: KeptFeatures

    @property
    def has_work(self) -> bool: ...
    @property
    def is_computing(self) -> bool: ...
    @property
    def waits_for_memory(self) -> bool: ...
    @property
    def reserved(self) -> int: ...
    @property
    def step_bytes(self) -> int: ...
    def ledger(self) -> Ledger: ...
    def drop_evicted(self, *, wholly: bool = False) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A job that waits for `nbytes` bytes. One that `yields` lets later requests and jobs pass."""

    nbytes: int
    yields: bool = False


class MemoryAccount:
    """`limit` bytes for all models, of which `queue` are kept for writes to the cold tier.

    unwritten  returns the bytes of unloaded models that wait for the cold tier
    set_aside  bytes set aside for running jobs (engine/memory/reservations.py)
    waiting    jobs that wait for bytes, in order
    """

    def __init__(
        self, limit: int, queue: int = 0, unwritten: Callable[[], int] = lambda: 0
    ) -> None:
        self.limit = limit
        self.queue = queue
        self.unwritten = unwritten
        self.pressure = NO_PRESSURE  # on the machine's memory
        self.set_aside = 0
        self.waiting: list[Waiting] = []
        self.shares: list[MemoryShare] = []
        self.clock = count(1)  # numbers the steps of all models

    def share(self, weights: int) -> "MemoryShare":
        share = MemoryShare(self, weights)
        self.shares.append(share)
        self.rebudget()
        return share

    @property
    def weights(self) -> int:
        return sum(share.weights for share in self.shares)

    @property
    def awaited_bytes(self) -> int:
        """Bytes of waiting jobs that hold newcomers back."""
        return sum(job.nbytes for job in self.waiting if not job.yields)

    def held(self) -> Ledger:
        """Return one ledger of all models and jobs, without the pool."""
        return sum((s.held() for s in self.shares), self.base_ledger())

    def base_ledger(self) -> Ledger:
        pending, machine = self.unwritten(), self.pressure.taken
        return Ledger(
            self.limit, self.weights, live=self.set_aside, pending=pending, machine=machine
        )

    def largest_job(self) -> int:
        """Return the bytes for a job beside all models that are loaded."""
        return self.limit - self.weights - self.queue - self._least_hot_bytes

    def largest_job_alone(self, share: "MemoryShare") -> int:
        """Return the bytes for a job if no other model were loaded."""
        hot_bytes = max(share.pinned, hot_floor_bytes(self.limit - share.weights))
        return self.limit - share.weights - self.queue - hot_bytes

    def free(self) -> int:
        """Return the bytes that a job may take now."""
        holders = [share.holder for share in self.shares if share.holder]
        running_bytes = hot_bytes = step_bytes = 0
        pending_bytes = self.unwritten()
        for holder in holders:
            ledger = holder.ledger()
            running_bytes += max(ledger.live, holder.reserved)
            hot_bytes += ledger.blocks + ledger.checkpoints
            pending_bytes += ledger.pending
            if holder.has_work:  # models take their steps one after the other
                step_bytes = max(step_bytes, holder.step_bytes)
        held_bytes = self.weights + running_bytes + self.set_aside + hot_bytes
        return self.limit - held_bytes - max(self.queue, pending_bytes) - step_bytes

    def wait_for_jobs(self) -> Work[None]:
        """Wait until jobs and the weights of a new model fit together."""
        yield
        while self.set_aside and self.free() < 0:
            yield

    @property
    def floor(self) -> int:
        """Bytes that all hot tiers together always keep."""
        return hot_floor_bytes(self.limit - self.weights)

    @property
    def _least_hot_bytes(self) -> int:
        """Bytes that no hot tier gives up: what is pinned, and at least its part of the floor."""
        pinned = [share.pinned for share in self.shares if share.holder]
        if not pinned:
            return self.floor
        floor = self.floor // len(pinned)
        return sum(max(nbytes, floor) for nbytes in pinned)

    @property
    def is_busy(self) -> bool:
        return any(share.holder and share.holder.has_work for share in self.shares)

    @property
    def has_waiting_requests(self) -> bool:
        """Whether a request waits for memory."""
        return any(share.holder and share.holder.waits_for_memory for share in self.shares)

    @property
    def spare(self) -> int:
        """Bytes of hot tiers above their least, and of unused image features."""
        features = sum(share.holder.features.spare for share in self.shares if share.holder)
        hot_bytes = sum(share.own_hot for share in self.shares)
        return features + max(0, hot_bytes - self._least_hot_bytes)

    def shrink(self, nbytes: int) -> None:
        """Free `nbytes` of image features, then of hot tiers down to their floor, idle models
        first."""
        shares, missing_bytes = self._shares_idle_first(), nbytes
        for share in shares:
            missing_bytes -= share.holder.features.let_go(missing_bytes) if share.holder else 0
        for share in shares:
            missing_bytes -= share.shrink(missing_bytes, self.floor // len(shares))

    def _shares_idle_first(self) -> "list[MemoryShare]":
        return sorted((s for s in self.shares if s.holder), key=lambda s: (s.is_busy, s.used))

    def rebudget(self) -> None:
        """Set each hot tier's budget anew, which depends on the weights of all models."""
        weights = self.weights
        for share in self.shares:
            share.rebudget(weights)

    def change_pressure(self, pressure: MemoryPressure) -> None:
        """Use what the machine has; what it takes from the server goes back to it at once."""
        takes_more = pressure.taken > self.pressure.taken
        self.pressure = pressure
        if takes_more:
            self.trim()
            device.drain_pool()

    def trim(self) -> None:
        """Evict until all hot tiers together are within their budget, and the server within what
        the machine's memory allows."""
        if self.pressure.taken:
            ledger = self.held()
            over = ledger.held - ledger.pending + self.pressure.taken - self.limit
            self.shrink(max(0, over))
        shares = self._shares_idle_first()
        # Each budget is of all models together; the smallest counts.
        budget = min((share.budget.nbytes for share in shares), default=0)
        excess_bytes = sum(share.own_hot for share in shares) - budget
        for share in shares:
            excess_bytes -= share.shrink(excess_bytes, 0)
        most_buffers = min((share.budget.buffers for share in shares), default=0)
        excess_buffers = sum(share.own_buffers for share in shares) - most_buffers
        for share in shares:
            excess_buffers -= share.shrink_buffers(excess_buffers)


class MemoryShare:
    """One model's part of the account, and its guard's Neighbours. `live`, `reserved` and
    `pending` are bytes of all others, as of the last `note_others`."""

    def __init__(self, account: MemoryAccount, weights: int) -> None:
        self.account = account
        self.weights = weights
        self.holder: MemoryHolder | None = None
        self.is_loading = True
        self.budget = HotBudget(0, 0)
        self.used = 0  # the number of its newest step among those of all models
        self._budget_of: BudgetOf = lambda weights: HotBudget(0, 0)
        self.live = self.reserved = self.pending = 0

    def set_weights(self, weights: int) -> None:
        self.weights, self.is_loading = weights, False
        self.account.rebudget()

    def set_weights_and_budget(self, weights: int, budget_of: BudgetOf) -> None:
        """Note the weights, and the hot tier's budget as a function of them."""
        self._budget_of = budget_of
        self.set_weights(weights)

    def rebudget(self, weights: int) -> None:
        self.budget = self._budget_of(weights)
        if self.holder is not None:
            self.holder.cache.budget = self.budget
            self.holder.drop_evicted()

    def leave(self) -> None:
        self.holder = None
        self.account.shares.remove(self)
        self.account.rebudget()

    def note_others(self) -> None:
        """Note what others hold, before a step is planned."""
        self.used = next(self.account.clock)
        others = sum((share.held() for share in self._other_holders()), Ledger())
        reserved = sum(s.holder.reserved for s in self._other_holders() if s.holder)
        aside, awaited = self.account.set_aside, self.account.awaited_bytes
        self.live, self.reserved = others.live + aside, reserved + aside + awaited
        self.pending = others.pending + self.account.unwritten()

    def held(self) -> Ledger:
        return self.holder.ledger() if self.holder else Ledger()

    @property
    def is_busy(self) -> bool:
        return self.holder is not None and self.holder.has_work

    def shrink(self, nbytes: int, floor: int) -> int:
        """Evict down to `floor`. Return the bytes evicted."""
        if self.holder is None or nbytes <= 0:
            return 0
        evicted = self.holder.cache.eviction.make_room(nbytes, floor)
        self.holder.drop_evicted(wholly=True)
        return evicted.nbytes

    def shrink_buffers(self, count: int) -> int:
        """Evict blocks of at least `count` buffers. Return how many buffers went."""
        if self.holder is None or count <= 0:
            return 0
        cache, before = self.holder.cache, self.own_buffers
        cache.budget = replace(self.budget, buffers=max(0, before - count))  # this evicts
        cache.budget = self.budget
        self.holder.drop_evicted()
        return before - self.own_buffers

    @property
    def count(self) -> int:
        return sum(1 for _ in self._other_holders())

    @property
    def hot(self) -> int:
        return sum(share.own_hot for share in self._other_holders())

    @property
    def own_hot(self) -> int:
        return self.holder.cache.index.idle_bytes if self.holder else 0

    @property
    def pinned(self) -> int:
        """Bytes of this hot tier that are never evicted."""
        return self.holder.cache.pinned.nbytes if self.holder else 0

    @property
    def own_buffers(self) -> int:
        return self.holder.cache.index.buffers if self.holder else 0

    @property
    def at_work(self) -> bool:
        return self.live > 0 or any(share.is_loading for share in self.account.shares)

    @property
    def are_computing(self) -> bool:
        return any(share.holder and share.holder.is_computing for share in self._other_holders())

    def make_room(self, nbytes: int, floor: int, *, at_rest: bool) -> int:
        """Evict from others, longest unused first: from idle models if `at_rest`, else from busy
        ones. Return the bytes evicted."""
        evicted = 0
        for share in sorted(self._other_holders(), key=lambda s: s.used):
            if share.is_busy != at_rest:
                evicted += share.shrink(nbytes - evicted, floor)
        return evicted

    def _other_holders(self) -> Iterator["MemoryShare"]:
        return (s for s in self.account.shares if s is not self and s.holder is not None)


class MemoryWatch:
    """Tells one model's guard what all hold, and its planner what steps took."""

    def __init__(self, guard: MemoryGuard, planner: Planner, share: MemoryShare) -> None:
        self.guard = guard
        self.share = share
        self.planner = planner
        self.begin(Ledger())

    def begin(self, ledger: Ledger, features: int = 0) -> None:
        self.share.note_others()
        self.guard.limit = self.share.account.limit
        ledger = replace(self._with_account(ledger), pool=device.pool_memory())
        self.guard.begin(ledger, features)

    def update_ledger(self, ledger: Ledger, features: int = 0) -> None:
        self.guard.ledger = self._with_account(ledger)
        self.guard.features = features

    def _with_account(self, ledger: Ledger) -> Ledger:
        account = self.share.account
        self.guard.pressure = account.pressure
        return replace(
            ledger, limit=account.limit, weights=account.weights, machine=account.pressure.taken
        )

    def begin_step(self) -> None:
        device.begin_peak()

    def note_step(self, step: StepShape, now: float) -> None:
        transient_bytes = device.peak_memory() - device.active_memory()
        self.planner.observe(step, max(0, transient_bytes), now)


_log = logging.getLogger(__name__)


class Audit:
    """Logs when the account and MLX differ. `drift` is the last difference (`Ledger.drift`)."""

    def __init__(self, account: MemoryAccount) -> None:
        self.account = account
        self.drift = 0.0
        self._check_again = Interval(_CHECK_SECONDS)
        self._has_warned = False

    def check(self, now: float) -> None:
        """Compare, at most once a second, while nothing runs."""
        if not self._check_again.has_passed(now):
            return
        self._check_again.begin(now)
        device.wait()
        ledger = self.account.held()
        self.drift = ledger.drift(device.active_memory())
        is_off = abs(self.drift) > DRIFT
        if is_off and not self._has_warned:
            _log.warning("the account of memory is off by %.1f %%: %s", 100 * self.drift, ledger)
        self._has_warned = is_off

    def report(
        self, guards: Iterable[MemoryGuard], unloaded: Iterable[Counted] = ()
    ) -> MemoryReport:
        used, step = sum((counted.reliefs for counted in unloaded), Counter[Relief]()), 0
        ledger = replace(self.account.base_ledger(), pool=device.pool_memory())
        for guard in guards:
            used += guard.used
            step = max(step, guard.ledger.step)
            ledger += guard.ledger
        reliefs = tuple((relief.value, used[relief]) for relief in Relief)
        pressure = int(self.account.pressure.level)
        return MemoryReport(replace(ledger, step=step), self.drift, reliefs, pressure=pressure)
