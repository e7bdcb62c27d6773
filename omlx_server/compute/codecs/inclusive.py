"""InclusiveRing: cut and joined as the ring of mlx-lm, but never out of a decode."""

from omlx_server.compute.architectures.inclusive_ring import InclusiveRing
from omlx_server.compute.codecs.base import Cache
from omlx_server.compute.codecs.rotating import RotatingKVCodec


class InclusiveRingCodec(RotatingKVCodec):
    """A decode looks back one token less than a prefill, so the layers above this one remember
    something else of its tokens: what was answered is computed again by the next turn."""

    classes = (InclusiveRing,)
    stores_decoded = False
    groupable = False

    def describe(self, fresh: Cache) -> str:
        return f"inclusive-{super().describe(fresh)}"

    def begin_decode(self, cache: Cache) -> None:
        cache.begin_decode()
