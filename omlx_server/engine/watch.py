"""Keeps the account of memory true: what is held before each step, what steps really took.

Lives on the mlx thread. The guard decides by the account, the planner learns from what was
measured; where the account and MLX differ for good, somebody is told.
"""

import logging
import math
from dataclasses import replace

from omlx_server.compute import device
from omlx_server.core.memory.estimate import Planner
from omlx_server.core.memory.guard import Guard, Rung
from omlx_server.core.memory.ledger import DRIFT, Ledger, MemoryReport
from omlx_server.core.memory.shape import StepShape

_log = logging.getLogger(__name__)
_CHECK_SECONDS = 1.0


class MemoryWatch:
    """The memory of one model's lane. `weights` are those of all models that are loaded."""

    def __init__(self, guard: Guard, planner: Planner, weights: int) -> None:
        self.guard = guard
        self.drift = 0.0
        self._planner = planner
        self._weights = weights
        self._check_at = -math.inf
        self._drifts = False
        self.begin(Ledger())

    def report(self) -> MemoryReport:
        """The account as the last step was planned on it."""
        rungs = tuple((rung.value, self.guard.used[rung]) for rung in Rung)
        return MemoryReport(self.guard.ledger, self.drift, rungs)

    def begin(self, held: Ledger) -> None:
        """A step is about to be planned. `held` has what the lane knows of."""
        self.guard.begin(self._whole(held))

    def _whole(self, held: Ledger) -> Ledger:
        limit, pool = self.guard.limit, device.pool_memory()
        return replace(held, limit=limit, weights=self._weights, pool=pool)

    def begin_step(self) -> None:
        """The device is at rest, and about to run what `step_done` tells."""
        device.begin_peak()

    def step_done(self, step: StepShape, now: float) -> None:
        """It is at rest again."""
        transient = device.peak_memory() - device.active_memory()
        self._planner.observe(step, max(0, transient), now)

    def is_due(self, now: float) -> bool:
        """Whether the account was not compared for a while."""
        return now >= self._check_at

    def check(self, held: Ledger, now: float) -> None:
        """Compare an account with what MLX says; the device is at rest."""
        self._check_at = now + _CHECK_SECONDS
        held = self._whole(held)
        self.drift = held.drift(device.active_memory())
        drifts = abs(self.drift) > DRIFT
        if drifts and not self._drifts:
            _log.warning("the account of memory is off by %.1f %%: %s", 100 * self.drift, held)
        self._drifts = drifts
