"""The caches of each scheme, told apart by their class as mlx-lm's are."""

from collections.abc import Sequence

from omlx_server.compute.kv.affine import Affine
from omlx_server.compute.kv.base import Scheme
from omlx_server.compute.kv.caches import BatchPackedKVCache, PackedKVCache
from omlx_server.compute.kv.rotated import Rotated
from omlx_server.compute.kv.turboquant import TurboQuant


class AffineKVCache(PackedKVCache):
    @classmethod
    def merge(cls, caches: Sequence[PackedKVCache]) -> BatchPackedKVCache:
        return BatchAffineKVCache.merge(caches)


class BatchAffineKVCache(BatchPackedKVCache):
    solo = AffineKVCache


class RotatedKVCache(PackedKVCache):
    @classmethod
    def merge(cls, caches: Sequence[PackedKVCache]) -> BatchPackedKVCache:
        return BatchRotatedKVCache.merge(caches)


class BatchRotatedKVCache(BatchPackedKVCache):
    solo = RotatedKVCache


class TurboQuantKVCache(PackedKVCache):
    @classmethod
    def merge(cls, caches: Sequence[PackedKVCache]) -> BatchPackedKVCache:
        return BatchTurboQuantKVCache.merge(caches)


class BatchTurboQuantKVCache(BatchPackedKVCache):
    solo = TurboQuantKVCache


# The caches of each kind of scheme.
BATCHES: dict[type, type[BatchPackedKVCache]] = {
    Affine: BatchAffineKVCache,
    Rotated: BatchRotatedKVCache,
    TurboQuant: BatchTurboQuantKVCache,
}


def new_cache(scheme: Scheme) -> PackedKVCache:
    """An empty cache of one sequence."""
    return BATCHES[type(scheme)].solo(scheme)
