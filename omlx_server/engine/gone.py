"""What models that were unloaded have counted: totals never go down. Lives on the mlx thread."""

from collections import Counter

from omlx_server.core.cache_report import CacheReport
from omlx_server.core.cold import ColdReport
from omlx_server.core.memory.guard import Rung
from omlx_server.engine.driver import Driver


class Gone:
    """The sums over all of them. `cache` holds nothing; only its counters say something. `cold` is
    the cold tier of all as the last one saw it."""

    def __init__(self) -> None:
        self.cache = CacheReport()
        self.cold: ColdReport | None = None
        self.rungs: Counter[Rung] = Counter()

    def add(self, driver: Driver | None) -> None:
        """One more leaves."""
        if driver is None:
            return
        self.cache = self.cache.counted_with(driver.lane.cache.report())
        self.cold = driver.status.cold or self.cold
        watch = driver.lane.watch
        if watch is not None:
            self.rungs += watch.guard.used
