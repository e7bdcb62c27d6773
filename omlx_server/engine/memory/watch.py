"""Keeps the account of memory true: it notes what is held before each step, and measures what steps
took.

Lives on the mlx thread. The guard decides by the account; the planner learns from the measurements.
"""

from dataclasses import replace

from omlx_server.compute.hardware import device
from omlx_server.core.memory.estimate import Planner
from omlx_server.core.memory.guard import MemoryGuard
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.memory.shape import StepShape
from omlx_server.engine.memory.account import MemoryShare


class MemoryWatch:
    """Watches the memory of one model's instance, which has a `share` in the account of all."""

    def __init__(self, guard: MemoryGuard, planner: Planner, share: MemoryShare) -> None:
        self.guard = guard
        self.share = share
        self.planner = planner
        self.begin(Ledger())

    def begin(self, held: Ledger, features: int = 0) -> None:
        """Tell the guard what is held, because a step is about to be planned. `held` is what the
        instance knows of: all but weights, pool and limit. `features` bytes of its live ones are
        features of images."""
        account = self.share.account
        self.share.begin()
        self.guard.limit = account.limit
        self.guard.begin(
            replace(held, limit=account.limit, weights=account.weights, pool=device.pool_memory()),
            features,
        )

    def update_ledger(self, held: Ledger, features: int = 0) -> None:
        """Tell the guard between two steps what is held, as `begin` does, but for the pool."""
        account = self.share.account
        self.guard.ledger = replace(held, limit=account.limit, weights=account.weights)
        self.guard.features = features

    def begin_step(self) -> None:
        """Begin to measure what `step_done` names, which is about to run."""
        device.begin_peak()

    def step_done(self, step: StepShape, now: float) -> None:
        """Tell the planner how many bytes `step` took, now that it is done. `now` is in
        seconds."""
        transient = device.peak_memory() - device.active_memory()
        self.planner.observe(step, max(0, transient), now)
