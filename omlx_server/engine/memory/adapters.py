"""The adapters of a model that are in memory: how many may be, which are in use, which goes first.
Lives on the mlx thread."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from omlx_server.compute.adapters.adapters import Adapters
from omlx_server.core.adapters import Adapter
from omlx_server.core.memory.ledger import in_words
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.engine.memory.watch import MemoryWatch
from omlx_server.errors import AdapterUnusable


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """How many adapters of one model may be loaded, and how many bytes their weights may have."""

    count: int = 8
    nbytes: int = 2 * 10**9


class LoadedAdapters:
    """The `adapters` of a model, of which `limits` bounds those in memory. `queues` gives the
    queues of its scheduler: an adapter is in use as long as a sequence in them has it. `changing`:
    one is being loaded or let go."""

    def __init__(self, adapters: Adapters, queues: Callable[[], SequenceQueues]) -> None:
        self.adapters = adapters
        self.limits = AdapterLimits()
        self.changing = False
        self._queues = queues
        self._expected = Counter[Adapter]()
        self._counted = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the adapters in memory, in the order of the alphabet."""
        return tuple(sorted({adapter.name for adapter in self.adapters.loaded}))

    @contextmanager
    def expecting(self, adapter: Adapter) -> Iterator[None]:
        """A context in which an adapter stays once it is loaded, because a request that is not
        queued yet will need it."""
        self._expected[adapter] += 1
        try:
            yield
        finally:
            self._expected -= Counter([adapter])

    @contextmanager
    def changing_alone(self) -> Iterator[None]:
        """A context of the one job that loads an adapter or lets one go."""
        self.changing = True
        try:
            yield
        finally:
            self.changing = False

    def check(self, adapter: Adapter) -> None:
        """Raises AdapterUnusable if an adapter is larger than all together may be."""
        if adapter.nbytes > self.limits.nbytes:
            raise AdapterUnusable(
                f"the adapter '{adapter.name}' has {in_words(adapter.nbytes)} of weights as "
                f"float32, and adapters.max_bytes is {in_words(self.limits.nbytes)}",
                param="adapter",
            )

    def is_full(self, adapter: Adapter) -> bool:
        """Whether another adapter has to go before this one is loaded."""
        loaded = [other for other in self.adapters.loaded if other != adapter]
        nbytes = adapter.nbytes + sum(other.nbytes for other in loaded)
        return len(loaded) >= self.limits.count or nbytes > self.limits.nbytes

    def first_to_go(self) -> Adapter | None:
        """Of the adapters that nothing uses, the one least recently used; None if there is none."""
        used = {sequence.request.adapter for sequence in self._queues().sequences()}
        idle = (
            one for one in self.adapters.loaded if one not in used and one not in self._expected
        )
        return next(idle, None)

    def weigh(self, watch: MemoryWatch | None) -> None:
        """Tell the account and the planner what the adapters in memory take."""
        nbytes, counted = self.adapters.nbytes, self._counted
        self._counted = nbytes
        if watch is not None:
            watch.planner.adapter_bytes = self.adapters.token_bytes
            watch.share.weigh(watch.share.weights + nbytes - counted)
