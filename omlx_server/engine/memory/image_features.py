"""Memory of image features in one model."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from omlx_server.compute.vision.vision import Vision
from omlx_server.core.memory.ledger import features_bytes
from omlx_server.core.scheduler.queues import SequenceQueues


class KeptFeatures:
    """Features in the `vision` of a model, if any. Those of a prompt stay until its rows decode."""

    def __init__(self, vision: Vision | None, queues: Callable[[], SequenceQueues]) -> None:
        self._vision = vision
        self._queues = queues
        self._expected = Counter[bytes]()

    @property
    def nbytes(self) -> int:
        return self._vision.nbytes if self._vision is not None else 0

    @property
    def spare(self) -> int:
        if self._vision is None or not self._vision.nbytes:
            return 0
        return self._vision.spare(self._digests_in_prompts())

    @contextmanager
    def expecting(self, digests: Iterable[bytes]) -> Iterator[None]:
        """Have `trim` spare these images for a request that is not queued yet."""
        counts = Counter(digests)
        self._expected += counts
        try:
            yield
        finally:
            self._expected -= counts

    def trim(self, limit: int) -> None:
        """Keep no more than their part of `limit` bytes, unless prompts need more."""
        self._free(self.nbytes - features_bytes(limit), self._expected)

    def let_go(self, nbytes: int) -> int:
        """Free bytes that no prompt needs. Return the bytes freed."""
        return self._free(min(nbytes, self.nbytes))

    def forget(self) -> None:
        self._free(self.nbytes)

    def _free(self, nbytes: int, spared: Collection[bytes] = ()) -> int:
        if self._vision is None or nbytes <= 0:
            return 0
        return self._vision.let_go(nbytes, self._digests_in_prompts().union(spared))

    def _digests_in_prompts(self) -> set[bytes]:
        queues = self._queues()
        requests = [prefill.request for prefill in (*queues.waiting, *queues.active)]
        requests += [row.request for row in queues.running.values() if not row.has_decoded]
        return {image.digest for request in requests for image in request.images}
