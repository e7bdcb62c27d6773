"""The table of cache classes and their codecs. A leaf is a cache, or a member of a CacheList."""

from collections.abc import Callable, Iterator, Sequence

from mlx_lm.models.cache import CacheList

from omlx_server.compute.codecs.arrays import ArraysCodec
from omlx_server.compute.codecs.base import Cache, Codec
from omlx_server.compute.codecs.chunked import ChunkedKVCodec
from omlx_server.compute.codecs.compressed import CompressedCodec
from omlx_server.compute.codecs.kv import KVCodec, PackedKVCodec
from omlx_server.compute.codecs.rotating import InclusiveRingCodec, RotatingKVCodec

_CODECS = (
    KVCodec(),
    PackedKVCodec(),
    RotatingKVCodec(),
    InclusiveRingCodec(),
    ChunkedKVCodec(),
    ArraysCodec(),
    CompressedCodec(),
)
BY_CLASS: dict[type, Codec] = {kind: codec for codec in _CODECS for kind in codec.classes}
_UNKNOWN = Codec()


def leaves(caches: Sequence[Cache]) -> Iterator[Cache]:
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


def replaced(caches: Sequence[Cache], change: Callable[[Cache], Cache]) -> list[Cache]:
    """Return caches of the same structure with changed leaves."""
    return [
        CacheList(*replaced(cache.caches, change))
        if isinstance(cache, CacheList)
        else change(cache)
        for cache in caches
    ]


def codec_of(leaf: Cache) -> Codec:
    """Return the codec of a cache's class or nearest base class; else `Codec`."""
    return next((BY_CLASS[kind] for kind in type(leaf).__mro__ if kind in BY_CLASS), _UNKNOWN)


def codecs_for(fresh: Sequence[Cache]) -> list[Codec] | None:
    """Return the codec of every leaf; None when parts can't hold all of one."""
    pairs = [(codec_of(leaf), leaf) for leaf in leaves(fresh)]
    if not all(codec.reusable(leaf) for codec, leaf in pairs):
        return None
    return [codec for codec, _ in pairs]
