"""Checks the account of memory against MLX's count."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from omlx_server.compute.hardware import device
from omlx_server.core.interval import Interval
from omlx_server.core.memory.guard import MemoryGuard, Relief
from omlx_server.core.memory.ledger import DRIFT, MemoryReport
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.messages import Counted

_log = logging.getLogger(__name__)
_CHECK_SECONDS = 1.0


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
        return MemoryReport(replace(ledger, step=step), self.drift, reliefs)
