"""The memory that features of images take in one model, and what of them goes when it is short.
Lives on the mlx thread."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from omlx_server.compute.vision.vision import Vision
from omlx_server.core.memory.budgets import features_bytes
from omlx_server.core.scheduler.queues import SequenceQueues


class KeptFeatures:
    """The features in the `vision` of a model; None where it has none. `queues` gives the queues of
    its scheduler: features of a prompt stay until its rows decode."""

    def __init__(self, vision: Vision | None, queues: Callable[[], SequenceQueues]) -> None:
        self._vision = vision
        self._queues = queues
        self._expected = Counter[bytes]()

    @property
    def nbytes(self) -> int:
        """Bytes of all features."""
        return self._vision.nbytes if self._vision is not None else 0

    @property
    def spare(self) -> int:
        """Bytes of the features that no prompt needs now."""
        if self._vision is None or not self._vision.nbytes:
            return 0
        return self._vision.spare(self._wanted())

    @contextmanager
    def expecting(self, digests: Iterable[bytes]) -> Iterator[None]:
        """A context in which `trim` spares the features of these images, because a request that is
        not queued yet will need them. What makes room spares none: so who waits for room while it
        expects features hinders nobody."""
        own = Counter(digests)
        self._expected += own
        try:
            yield
        finally:
            self._expected -= own

    def trim(self, limit: int) -> None:
        """Keep no more than their part of a memory of `limit` bytes, unless prompts need more."""
        self._let_go(self.nbytes - features_bytes(limit), self._expected)

    def let_go(self, nbytes: int) -> int:
        """Let go of `nbytes` bytes, as far as no prompt needs them. Returns how many went."""
        return self._let_go(min(nbytes, self.nbytes))

    def forget(self) -> None:
        """Let go of all that no prompt needs."""
        self._let_go(self.nbytes)

    def _let_go(self, nbytes: int, spared: Collection[bytes] = ()) -> int:
        if self._vision is None or nbytes <= 0:
            return 0
        return self._vision.let_go(nbytes, self._wanted().union(spared))

    def _wanted(self) -> set[bytes]:
        """The digests of images in prompts that wait or are under way, and of rows that have not
        decoded: their last chunk may still have to be computed."""
        queues = self._queues()
        requests = [prefill.request for prefill in (*queues.waiting, *queues.active)]
        requests += [row.request for row in queues.running.values() if not row.has_decoded]
        return {image.digest for request in requests for image in request.images}
