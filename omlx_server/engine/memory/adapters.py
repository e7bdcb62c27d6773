"""The adapters of a model that are in memory: how many may be, which are in use, which goes first.
Lives on the mlx thread."""

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
    """How many adapters of one model may be loaded, and how many bytes they may take together."""

    count: int = 8
    nbytes: int = 2 * 10**9


class LoadedAdapters:
    """The adapters of a model: `weights` are those in memory, which `limits` bounds. `queues` gives
    the queues of its scheduler: an adapter is in use as long as a sequence in them has it."""

    def __init__(self, weights: AdapterStore, queues: Callable[[], SequenceQueues]) -> None:
        self.weights = weights
        self.limits = AdapterLimits()
        self._queues = queues
        self._expected = Counter[Adapter]()
        self._counted = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all weights, as the account knows them."""
        return self._counted

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the adapters in memory, in the order of the alphabet."""
        return tuple(sorted({adapter.name for adapter in self.weights.loaded}))

    @contextmanager
    def expecting(self, adapter: Adapter) -> Iterator[None]:
        """A context in which an adapter stays once it is loaded, because a request that is not
        queued yet will need it."""
        self._expected[adapter] += 1
        try:
            yield
        finally:
            self._expected -= Counter([adapter])

    def check(self, adapter: Adapter) -> None:
        """Raises AdapterUnusable if an adapter alone takes more than all together may."""
        nbytes = AdapterStore().nbytes_with(adapter)
        if nbytes > self.limits.nbytes:
            raise AdapterUnusable(
                f"the adapter '{adapter.name}' takes {in_words(nbytes)} of memory as float32, and "
                f"adapters.max_bytes is {in_words(self.limits.nbytes)}",
                param="adapter",
            )

    def is_full(self, adapter: Adapter) -> bool:
        """Whether another adapter has to go before this one is loaded."""
        is_crowded = len(self.weights.loaded) >= self.limits.count
        return is_crowded or self.weights.nbytes_with(adapter) > self.limits.nbytes

    def first_to_go(self) -> Adapter | None:
        """Of the adapters that nothing uses, the one least recently used; None if there is none."""
        return next(filter(self.is_idle, self.weights.loaded), None)

    def is_idle(self, adapter: Adapter) -> bool:
        """Whether nothing uses an adapter."""
        sequences = self._queues().sequences()
        used = any(sequence.request.adapter == adapter for sequence in sequences)
        return not used and adapter not in self._expected

    def update_account(self, watch: MemoryWatch | None) -> None:
        """Tell the account and the planner what the adapters in memory take."""
        nbytes, counted = self.weights.nbytes, self._counted
        self._counted = nbytes
        if watch is not None:
            watch.planner.adapter_token_bytes = self.weights.token_bytes
            watch.share.weigh(watch.share.weights + nbytes - counted)
