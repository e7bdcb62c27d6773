"""Two ways to read what TurboQuant has stored."""

from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes import codebook, codes, packing, tiles
from omlx_server.compute.kv.schemes.base import Arrays
from omlx_server.core.memory.kv import TileSizes

_MANY_ROWS = 128
_TOKENS = 512
# On the CPU backend a tile should stay in the processor's cache.
_NUMBERS_ON_CPU = 1 << 18
_FEWEST_TOKENS_ON_CPU = 128
_ALWAYS_FEW = 1 << 30
_ALL_TOKENS = 1 << 60


@dataclass(frozen=True, slots=True, eq=False)
class _TurboquantTiles(tiles.StoredTiles):
    key_bits: int
    value_bits: int
    value_dim: int


class Coded(_TurboquantTiles):
    """GPU: 8-bit codes for MLX's quantised products. Few rows read all tokens at once, in as few
    kernels for a long context as for a short one."""

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        keys = tiles.cut_tile(self.keys, start, stop, rows)
        return codes.products(rows, keys, self.key_bits, transpose=True)

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        # The codes of the keys are freed before those of the values are computed.
        values = tuple(mx.depends([a[..., start:stop, :] for a in self.values], [weights]))
        mixed = codes.products(weights, values, self.value_bits, transpose=False)
        return mixed[..., : self.value_dim]


class UnpackedTurboquant(_TurboquantTiles):
    """CPU backend: the indices of a tile become levels in float32."""

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        levels, scales = _unpack_tile(self.keys, start, stop, self.key_bits, rows)
        missing = levels.shape[-1] - rows.shape[-1]
        if missing:
            rows = mx.pad(rows, [(0, 0)] * 3 + [(0, missing)])
        return (rows @ levels.swapaxes(-1, -2)) * scales.swapaxes(-1, -2)

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        levels, scales = _unpack_tile(self.values, start, stop, self.value_bits, weights)
        mixed = (weights * scales.swapaxes(-1, -2)) @ levels
        return mixed[..., : self.value_dim]


def tiles_for(
    queries: mx.array, keys: Arrays, values: Arrays, bits: tuple[int, int], value_dim: int
) -> tiles.StoredTiles:
    """Return the fastest tiles for queries [B, Hq, L, D]."""
    batch, query_heads, length, dim = queries.shape
    heads, total = keys[0].shape[1:3]
    if device.is_cpu():
        size = max(_NUMBERS_ON_CPU // (batch * heads * dim), _FEWEST_TOKENS_ON_CPU)
        return UnpackedTurboquant(keys, values, size, *bits, value_dim)
    few = query_heads // heads * length < _MANY_ROWS
    return Coded(keys, values, total if few else _TOKENS, *bits, value_dim)


def tile_sizes(bits: tuple[int, int]) -> TileSizes:
    if device.is_cpu():
        return TileSizes(_ALWAYS_FEW, 0, _NUMBERS_ON_CPU, _FEWEST_TOKENS_ON_CPU)
    # A code takes a byte, but two for 8 bits; 3 bits are spread to 4 before they become codes.
    number_bytes = 1 if set(bits) <= {2, 4} else 2
    return TileSizes(_MANY_ROWS, 0, _ALL_TOKENS, _TOKENS, number_bytes)


def _unpack_tile(
    stored: Arrays, start: int, stop: int, bits: int, after: mx.array
) -> tuple[mx.array, mx.array]:
    """Return levels f32 [B, H, tokens, padded D] and scales f32."""
    packed, scales = tiles.cut_tile(stored, start, stop, after)
    return codebook.decode(packing.unpack(packed, bits), bits), scales.astype(mx.float32)
