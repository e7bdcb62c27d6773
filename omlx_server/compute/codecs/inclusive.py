"""InclusiveRing: cut and joined as mlx-lm's ring is, but decoded tokens never become blocks."""

from omlx_server.compute.architectures.inclusive_ring import InclusiveRing
from omlx_server.compute.codecs.base import Cache
from omlx_server.compute.codecs.rotating import RotatingKVCodec


class InclusiveRingCodec(RotatingKVCodec):
    """A decode looks back one token less than a prefill, so after it the layers above this one hold
    something else of the same tokens. The next turn computes the answer's tokens again."""

    classes = (InclusiveRing,)
    stores_decoded = False
    groupable = False

    def describe(self, fresh: Cache) -> str:
        return f"inclusive-{super().describe(fresh)}"

    def begin_decode(self, cache: Cache) -> None:
        cache.begin_decode()
