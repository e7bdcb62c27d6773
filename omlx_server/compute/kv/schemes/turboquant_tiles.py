"""Reads what TurboQuant has stored, for `tiles.attend`: the indices of a tile become levels of the
codebook, and the products with these are scaled token by token."""

from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes import codebook, packing, tiles
from omlx_server.compute.kv.schemes.base import Arrays

_MANY_ROWS = 32
_TOKENS = 512
# On a GPU each tile costs two dozen launches, so few rows get few tiles.
_TILES_OF_FEW_ROWS = 8
# On the CPU backend a tile should stay in the processor's cache.
_NUMBERS_ON_CPU = 1 << 18
_FEWEST_TOKENS_ON_CPU = 128


@dataclass(frozen=True, slots=True, eq=False)
class UnpackedTiles:
    """The stored keys and values of all tokens, each as (words, scales), of which `size` tokens are
    read at a time. The rows given to `score` must be rotated; the sums of `mix` are rotated too."""

    keys: Arrays
    values: Arrays
    key_bits: int
    value_bits: int
    value_dim: int
    size: int

    @property
    def total(self) -> int:
        return self.keys[0].shape[2]

    @property
    def heads(self) -> int:
        return self.keys[0].shape[1]

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        levels, scales = _tile(self.keys, start, stop, self.key_bits, rows)
        missing = levels.shape[-1] - rows.shape[-1]
        if missing:
            rows = mx.pad(rows, [(0, 0)] * 3 + [(0, missing)])
        return (rows @ levels.swapaxes(-1, -2)) * scales.swapaxes(-1, -2)

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        levels, scales = _tile(self.values, start, stop, self.value_bits, weights)
        mixed = (weights * scales.swapaxes(-1, -2)) @ levels
        return mixed[..., : self.value_dim]


def tiles_for(
    queries: mx.array, keys: Arrays, values: Arrays, bits: tuple[int, int], value_dim: int
) -> UnpackedTiles:
    """The tiles for queries [B, Hq, L, D], of a size that suits the device. `bits` are those of
    keys and of values."""
    batch, query_heads, length, dim = queries.shape
    heads, total = keys[0].shape[1:3]
    if device.is_cpu():
        size = max(_NUMBERS_ON_CPU // (batch * heads * dim), _FEWEST_TOKENS_ON_CPU)
    elif query_heads // heads * length < _MANY_ROWS:
        size = max(-(-total // _TILES_OF_FEW_ROWS), _TOKENS)
    else:
        size = _TOKENS
    return UnpackedTiles(keys, values, *bits, value_dim, size)


def _tile(
    stored: Arrays, start: int, stop: int, bits: int, after: mx.array
) -> tuple[mx.array, mx.array]:
    """The levels f32 [B, H, tokens, D padded] of tokens [start, stop), and their scales f32."""
    packed, scales = tiles.cut(stored, start, stop, after)
    return codebook.decode(packing.unpack(packed, bits), bits), scales.astype(mx.float32)
