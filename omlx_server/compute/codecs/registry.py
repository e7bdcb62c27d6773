"""Which codec serves which cache class. The only table of its kind.

A CacheList is looked through: its members are caches of their own, each with its own kind.
"""

from collections.abc import Iterator, Sequence

from mlx_lm.models.cache import CacheList, RotatingKVCache

from omlx_server.compute.caches import Cache, Caches
from omlx_server.compute.codecs.arrays import ArraysCodec
from omlx_server.compute.codecs.base import Codec
from omlx_server.compute.codecs.chunked import ChunkedKVCodec
from omlx_server.compute.codecs.compressed import CompressedCodec
from omlx_server.compute.codecs.inclusive import InclusiveRingCodec
from omlx_server.compute.codecs.kv import KVCodec
from omlx_server.compute.codecs.quantized import QuantizedKVCodec
from omlx_server.compute.codecs.rotating import RotatingKVCodec

_CODECS = (
    KVCodec(),
    QuantizedKVCodec(),
    RotatingKVCodec(),
    InclusiveRingCodec(),
    ChunkedKVCodec(),
    ArraysCodec(),
    CompressedCodec(),
)
_BY_CLASS: dict[type, Codec] = {kind: codec for codec in _CODECS for kind in codec.classes}


def leaves(caches: Sequence[Cache]) -> Iterator[Cache]:
    """The caches, with those inside of CacheLists in their place."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


def codecs_for(fresh: Caches) -> list[Codec] | None:
    """The codec of every leaf of a model's fresh caches; None when a class is unknown, or when a
    ring keeps its first tokens for ever, which cut blocks do not show."""
    found = []
    for leaf in leaves(fresh):
        codec = _BY_CLASS.get(type(leaf))
        keeps_first = isinstance(leaf, RotatingKVCache) and leaf.keep
        if codec is None or keeps_first:
            return None
        found.append(codec)
    return found
