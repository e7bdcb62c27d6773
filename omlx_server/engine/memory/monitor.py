"""Keeps the account of memory true: what is held before each step, what steps really took.

Lives on the mlx thread. The guard decides by the account, the planner learns from what was
measured; where the account and MLX differ for good, somebody is told.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from omlx_server.compute.hardware import device
from omlx_server.core.memory.estimate import Planner
from omlx_server.core.memory.guard import Guard, Rung
from omlx_server.core.memory.ledger import DRIFT, Ledger, MemoryReport
from omlx_server.core.memory.shape import StepShape
from omlx_server.engine.memory.account import Account, Seat

_log = logging.getLogger(__name__)
_CHECK_SECONDS = 1.0
_NONE: Mapping[Rung, int] = MappingProxyType({})


class MemoryWatch:
    """The memory of one model's lane, which has a `seat` in the account of all."""

    def __init__(self, guard: Guard, planner: Planner, seat: Seat) -> None:
        self.guard = guard
        self.seat = seat
        self.planner = planner
        self.begin(Ledger())

    def begin(self, held: Ledger) -> None:
        """A step is about to be planned. `held` has what the lane knows of."""
        account = self.seat.account
        self.seat.begin()
        self.guard.limit = account.limit
        self.guard.begin(
            replace(held, limit=account.limit, weights=account.weights, pool=device.pool_memory())
        )

    def look(self, held: Ledger) -> None:
        """Between two steps: what is held, as `begin` has it."""
        account = self.seat.account
        self.guard.ledger = replace(held, limit=account.limit, weights=account.weights)

    def begin_step(self) -> None:
        """The device is at rest, and about to run what `step_done` tells."""
        device.begin_peak()

    def step_done(self, step: StepShape, now: float) -> None:
        """It is at rest again."""
        transient = device.peak_memory() - device.active_memory()
        self.planner.observe(step, max(0, transient), now)


class Audit:
    """Compares the account with what MLX says."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.drift = 0.0
        self._check_at = -math.inf
        self._drifts = False

    def is_due(self, now: float) -> bool:
        """Whether the account was not compared for a while."""
        return now >= self._check_at

    def check(self, now: float) -> None:
        """The device is at rest, and nothing is being loaded."""
        self._check_at = now + _CHECK_SECONDS
        held = self.account.held()
        self.drift = held.drift(device.active_memory())
        drifts = abs(self.drift) > DRIFT
        if drifts and not self._drifts:
            _log.warning("the account of memory is off by %.1f %%: %s", 100 * self.drift, held)
        self._drifts = drifts

    def report(self, guards: Iterable[Guard], gone: Mapping[Rung, int] = _NONE) -> MemoryReport:
        """The account of all, as their last steps were planned on it; `gone` is what models that
        have left had used."""
        used, step = Counter[Rung](gone), 0
        held = replace(self.account.beside(), pool=device.pool_memory())
        for guard in guards:
            used += guard.used
            step = max(step, guard.ledger.step)
            held += guard.ledger
        held = replace(held, step=step)
        return MemoryReport(held, self.drift, tuple((rung.value, used[rung]) for rung in Rung))
