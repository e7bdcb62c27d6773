"""What each layer's cache takes of a token: as a prefill has left it, and as it is after a trip
through bytes, as blocks make to the disk and back."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.codecs.registry import codecs_for, leaves
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec
from omlx_server.compute.payload_bytes import pack, unpack
from omlx_server.core.blocks.cache_layout import LayerKind
from scripts.benchmarks.kv_variants import FreshCaches, Variant

BLOCK = 64
_TOKENS = 4 * BLOCK


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes per token of each full-attention layer, and whether its class survived the trip."""

    prefilled: tuple[float, ...]
    rebuilt: tuple[float, ...]
    same_classes: bool


def measure(loaded: LoadedModel, variants: Sequence[Variant]) -> dict[Variant, Held]:
    """Raises ModelUnavailable when a variant does not fit the model."""
    found = {}
    for variant in variants:
        caches = FreshCaches(loaded, [variant]).of(variant)
        loaded.model(mx.zeros((1, _TOKENS), mx.int32), cache=caches)
        cache_ops.evaluate(caches, wait=True)
        rebuilt = through_bytes(loaded, caches)
        same = [type(leaf) for leaf in leaves(caches)] == [type(leaf) for leaf in leaves(rebuilt)]
        found[variant] = Held(_per_token(caches), _per_token(rebuilt), same)
    return found


def through_bytes(loaded: LoadedModel, caches: Caches) -> Caches:
    """The same caches, made of blocks that were bytes. The caches' variant must be the one that is
    installed in the model."""
    codec = BlockCodec.of(loaded.model, BLOCK)
    assert codec is not None, "quantised caches have a codec"
    size, row = codec.layout.block_size, CacheRow(0, _TOKENS)
    blocks = []
    for start in range(0, _TOKENS, size):
        payload = codec.cut_block(caches, row, start, start + size)
        blocks.append(unpack(pack(payload)))
    return codec.join(blocks, codec.cut_checkpoint(caches, row), _TOKENS)


def _per_token(caches: Caches) -> tuple[float, ...]:
    row, codecs = CacheRow(0, _TOKENS), codecs_for(caches)
    assert codecs is not None, "every cache of these models has a codec"
    return tuple(
        sum(array.nbytes for array in codec.cut(leaf, row, 0, _TOKENS)) / _TOKENS
        for codec, leaf in zip(codecs, leaves(caches), strict=True)
        if codec.kind is LayerKind.DELTA
    )
