"""Adapters of one model in memory: limits, use, order of unloading. Lives on the mlx thread."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from omlx_server.compute.adapters.adapters import AdapterStore
from omlx_server.core.adapters import Adapter
from omlx_server.core.memory.ledger import in_words
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.engine.memory.watch import MemoryWatch
from omlx_server.errors import AdapterUnusable


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """The number of adapters of one model that may be loaded, and their bytes together."""

    count: int = 8
    nbytes: int = 2 * 10**9


class LoadedAdapters:
    """A model's adapters: `weights` are those in memory, bounded by `limits`. An adapter is in use
    while a sequence in the scheduler's `queues` has it."""

    def __init__(self, weights: AdapterStore, queues: Callable[[], SequenceQueues]) -> None:
        self.weights = weights
        self.limits = AdapterLimits()
        self._queues = queues
        self._expected = Counter[Adapter]()
        self._counted = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, as the account knows them."""
        return self._counted

    @property
    def names(self) -> tuple[str, ...]:
        """Sorted names of the adapters in memory."""
        return tuple(sorted({adapter.name for adapter in self.weights.loaded}))

    @contextmanager
    def expecting(self, adapter: Adapter) -> Iterator[None]:
        """Keep an adapter for the block, for a request that is not queued yet."""
        self._expected[adapter] += 1
        try:
            yield
        finally:
            self._expected -= Counter([adapter])

    def check(self, adapter: Adapter) -> None:
        """Raise AdapterUnusable if an adapter alone exceeds the limit of bytes."""
        nbytes = AdapterStore().nbytes_with(adapter)
        if nbytes > self.limits.nbytes:
            raise AdapterUnusable(
                f"the adapter '{adapter.name}' takes {in_words(nbytes)} of memory as float32, and "
                f"adapters.max_bytes is {in_words(self.limits.nbytes)}",
                param="adapter",
            )

    def is_full(self, adapter: Adapter) -> bool:
        """Return whether another adapter has to go before this one is loaded."""
        is_crowded = len(self.weights.loaded) >= self.limits.count
        return is_crowded or self.weights.nbytes_with(adapter) > self.limits.nbytes

    def first_to_go(self) -> Adapter | None:
        """Return the least recently used adapter that nothing uses, or None."""
        return next(filter(self.is_idle, self.weights.loaded), None)

    def is_idle(self, adapter: Adapter) -> bool:
        sequences = self._queues().sequences()
        used = any(sequence.request.adapter == adapter for sequence in sequences)
        return not used and adapter not in self._expected

    def update_account(self, watch: MemoryWatch | None) -> None:
        """Tell the account and the planner the bytes of the adapters in memory."""
        nbytes, counted = self.weights.nbytes, self._counted
        self._counted = nbytes
        if watch is not None:
            watch.planner.adapter_token_bytes = self.weights.token_bytes
            watch.share.weigh(watch.share.weights + nbytes - counted)
