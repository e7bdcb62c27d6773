"""The peak of memory over a prefill, and over a rebuild from its blocks. In a process of its own,
for a model whose keys and values are most of what there is.

With a full-precision copy of the cache at any moment, the peak would show it.
"""

from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.quantise import use_scheme
from scripts.benchmarks.kv_bytes import BLOCK
from scripts.benchmarks.kv_variants import Variant

_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes. `cache` is what the cache's own buffers take, places for the next tokens included;
    peaks are above what there was before: the weights, then the blocks as well."""

    cache: int
    prefill: int
    rebuild: int


def measure(loaded: LoadedModel, variant: Variant, count: int) -> Peaks:
    """Of one prompt of `count` tokens."""
    scheme = variant.make()
    if scheme is not None:
        use_scheme(loaded.model, scheme)
    codec = BlockCodec.of(loaded.model, BLOCK)
    assert codec is not None, "quantised caches have a codec"
    _prefill(loaded, _CHUNK + 1)  # what is made once is not the cache
    before = _settled()
    caches = _prefill(loaded, count)
    prefill = mx.get_peak_memory() - before
    size = sum(leaf.nbytes for leaf in leaves(caches))
    sources = blocks_of(codec, caches, count)
    del caches
    before = _settled()
    rebuilt = codec.join(sources, None, count)
    cache_ops.evaluate(rebuilt, wait=True)
    return Peaks(size, prefill, mx.get_peak_memory() - before)


def _prefill(loaded: LoadedModel, count: int) -> Caches:
    caches = cache_ops.new_caches(loaded.model)
    vocab = loaded.dims.vocab
    for start in range(0, count, _CHUNK):
        tokens = mx.arange(start, min(start + _CHUNK, count)) % vocab
        loaded.model(tokens[None], cache=caches)
        cache_ops.evaluate(caches, wait=True)
    return caches


def blocks_of(codec: BlockCodec, caches: Caches, count: int) -> list[Payload]:
    """The blocks of `count` tokens of one row, computed."""
    size, blocks = codec.layout.block_size, list[Payload]()
    for start in range(0, count, size):
        stop = min(start + size, count)
        payload = codec.cut_block(caches, CacheRow(0, count), start, stop)
        mx.eval(*payload.buffers)
        blocks.append(payload)
    return blocks


def _settled() -> int:
    """Bytes in use now, from which the next peak is counted."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    return mx.get_active_memory()
