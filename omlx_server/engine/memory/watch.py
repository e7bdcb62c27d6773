"""Memory before and during the steps of one instance."""

from dataclasses import replace

from omlx_server.compute.hardware import device
from omlx_server.core.memory.estimate import Planner
from omlx_server.core.memory.guard import MemoryGuard
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.memory.shape import StepShape
from omlx_server.engine.memory.account import MemoryShare


class MemoryWatch:
    """Tells the guard what is held, and the planner what steps took."""

    def __init__(self, guard: MemoryGuard, planner: Planner, share: MemoryShare) -> None:
        self.guard = guard
        self.share = share
        self.planner = planner
        self.begin(Ledger())

    def begin(self, ledger: Ledger, features: int = 0) -> None:
        account = self.share.account
        self.share.begin()
        self.guard.limit = account.limit
        self.guard.begin(
            replace(
                ledger, limit=account.limit, weights=account.weights, pool=device.pool_memory()
            ),
            features,
        )

    def update_ledger(self, ledger: Ledger, features: int = 0) -> None:
        account = self.share.account
        self.guard.ledger = replace(ledger, limit=account.limit, weights=account.weights)
        self.guard.features = features

    def begin_step(self) -> None:
        device.begin_peak()

    def step_done(self, step: StepShape, now: float) -> None:
        transient = device.peak_memory() - device.active_memory()
        self.planner.observe(step, max(0, transient), now)
