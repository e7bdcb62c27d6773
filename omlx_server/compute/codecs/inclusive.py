"""InclusiveRing: a ring whose decoded tokens never become blocks."""

from omlx_server.compute.architectures.inclusive_ring import InclusiveRing
from omlx_server.compute.codecs.base import Cache
from omlx_server.compute.codecs.rotating import RotatingKVCodec


class InclusiveRingCodec(RotatingKVCodec):
    """The codec of rings whose decode window is one token shorter than their prefill window. The
    next turn computes decoded tokens again."""

    classes = (InclusiveRing,)
    stores_decoded = False
    groupable = False

    def describe(self, fresh: Cache) -> str:
        return f"inclusive-{super().describe(fresh)}"

    def begin_decode(self, cache: Cache) -> None:
        cache.begin_decode()
