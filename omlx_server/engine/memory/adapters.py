"""Adapters of one model in memory."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from omlx_server.compute.adapters.adapters import AdapterStore
from omlx_server.core.adapters import Adapter
from omlx_server.core.memory.ledger import in_words
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.engine.memory.account import MemoryWatch
from omlx_server.errors import AdapterUnusable


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    count: int = 8
    nbytes: int = 2 * 10**9


class LoadedAdapters:
    """A model's adapters. One is in use while a sequence in `queues` has it."""

    def __init__(self, weights: AdapterStore, queues: Callable[[], SequenceQueues]) -> None:
        self.weights = weights
        self.limits = AdapterLimits()
        self._queues = queues
        self._expected = Counter[Adapter]()
        self._counted_bytes = 0  # in the account of memory

    @property
    def nbytes(self) -> int:
        return self._counted_bytes

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({adapter.name for adapter in self.weights.loaded}))

    @contextmanager
    def expecting(self, adapter: Adapter) -> Iterator[None]:
        """Keep an adapter for a request that is not queued yet."""
        self._expected[adapter] += 1
        try:
            yield
        finally:
            self._expected -= Counter([adapter])

    def check(self, adapter: Adapter) -> None:
        """Raise AdapterUnusable if an adapter alone is too large."""
        nbytes = AdapterStore().nbytes_with(adapter)
        if nbytes > self.limits.nbytes:
            raise AdapterUnusable(
                f"the adapter '{adapter.name}' takes {in_words(nbytes)} of memory as float32, and "
                f"adapters.max_bytes is {in_words(self.limits.nbytes)}",
                param="adapter",
            )

    def is_full(self, adapter: Adapter) -> bool:
        """Return whether the limits have no place for one more adapter."""
        has_most = len(self.weights.loaded) >= self.limits.count
        return has_most or self.weights.nbytes_with(adapter) > self.limits.nbytes

    def longest_idle(self) -> Adapter | None:
        return next(filter(self.is_idle, self.weights.loaded), None)

    def is_idle(self, adapter: Adapter) -> bool:
        sequences = self._queues().sequences()
        is_used = any(sequence.request.adapter == adapter for sequence in sequences)
        return not is_used and adapter not in self._expected

    def update_account(self, watch: MemoryWatch | None) -> None:
        added_bytes = self.weights.nbytes - self._counted_bytes
        self._counted_bytes = self.weights.nbytes
        if watch is not None:
            watch.planner.adapter_token_bytes = self.weights.token_bytes
            watch.share.set_weights(watch.share.weights + added_bytes)
