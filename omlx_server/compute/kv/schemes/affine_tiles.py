"""Three ways to read what `mx.quantize` has packed."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes import fields, tiles
from omlx_server.compute.kv.schemes.base import Arrays
from omlx_server.core.memory.shape import TileSizes

_MANY_ROWS = 64
_TILE_OF_MANY_ROWS = 512
# The numbers that a tile unpacks to should stay in a processor's cache.
_NUMBERS_PER_TILE = 1 << 20
# For memory plans. On a GPU few rows read all keys at once, without unpacking them.
TILE_SIZES = TileSizes(_MANY_ROWS, 0, _NUMBERS_PER_TILE, _TILE_OF_MANY_ROWS)


def tiles_for(
    queries: mx.array, keys: Arrays, values: Arrays, bits: int, group_size: int
) -> tiles.StoredTiles:
    """Return the fastest tiles for queries [B, Hq, L, D]."""
    batch, heads, total, groups = keys[1].shape
    rows = queries.shape[1] // heads * queries.shape[2] * groups
    if rows >= _MANY_ROWS:
        return UnpackedAffine(keys, values, _TILE_OF_MANY_ROWS, bits, group_size)
    if device.is_cpu():
        size = _NUMBERS_PER_TILE // (batch * heads * queries.shape[3])
        return GroupRows(keys, values, max(size, _TILE_OF_MANY_ROWS), bits, group_size)
    return PackedTiles(keys, values, total, bits, group_size)


@dataclass(frozen=True, slots=True, eq=False)
class _Affine(tiles.StoredTiles):
    bits: int
    group_size: int


class UnpackedAffine(_Affine):
    """Many rows: a tile becomes plain numbers for a GEMM."""

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        numbers = self._unpack(tiles.cut_tile(self.keys, start, stop, rows))
        return (rows.astype(numbers.dtype) @ numbers.swapaxes(-1, -2)).astype(mx.float32)

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        numbers = self._unpack(tiles.cut_tile(self.values, start, stop, weights))
        return (weights.astype(numbers.dtype) @ numbers).astype(mx.float32)

    def _unpack(self, packed: Arrays) -> mx.array:
        words, scales, biases = _in_fast_dtype(packed)
        return mx.dequantize(words, scales, biases, group_size=self.group_size, bits=self.bits)


class GroupRows(_Affine):
    """Few rows on the CPU backend: products with the bare codes, scaled afterwards. Each of G
    groups of coordinates makes a row of its own, zero elsewhere."""

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        words, scales, biases = _in_fast_dtype(tiles.cut_tile(self.keys, start, stop, rows))
        rows, columns = rows.astype(mx.float32), fields.columns(words, self.bits)
        scales, biases = scales.swapaxes(-1, -2), biases.swapaxes(-1, -2)
        if scales.shape[2] == 1:
            return _dot_columns(rows, columns) * scales + rows.sum(axis=-1, keepdims=True) * biases
        batch, heads, count, _ = rows.shape
        split = rows.reshape(batch, heads, 1, count, scales.shape[2], -1)
        rows_of_groups = (split * _group_selector(scales)).reshape(batch, heads, -1, rows.shape[3])
        products = _dot_columns(rows_of_groups, columns)
        by_group = products.reshape(batch, heads, -1, count, scales.shape[3])
        totals = split[:, :, 0].sum(axis=-1)
        return (by_group * scales[..., None, :]).sum(axis=2) + totals @ biases

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        words, scales, biases = _in_fast_dtype(tiles.cut_tile(self.values, start, stop, weights))
        columns, scales = fields.columns(words, self.bits), scales.swapaxes(-1, -2)
        if scales.shape[2] == 1:
            return _weigh_columns(weights * scales, columns) + weights @ biases
        batch, heads, count, tokens = weights.shape
        scaled = weights[:, :, None] * scales[..., None, :]
        products = _weigh_columns(scaled.reshape(batch, heads, -1, tokens), columns)
        by_group = products.reshape(batch, heads, -1, count, scales.shape[2], self.group_size)
        mixed = (by_group * _group_selector(scales)).sum(axis=2) + (weights @ biases)[..., None]
        return mixed.reshape(batch, heads, count, -1)


class PackedTiles(_Affine):
    """Few rows on a GPU: MLX's quantised products."""

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        return self._multiply_packed(
            rows, tiles.cut_tile(self.keys, start, stop, rows), transpose=True
        )

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        packed = tiles.cut_tile(self.values, start, stop, weights)
        return self._multiply_packed(weights, packed, transpose=False)

    def _multiply_packed(self, rows: mx.array, packed: Arrays, *, transpose: bool) -> mx.array:
        words, scales, biases = packed
        product = mx.quantized_matmul(
            rows.astype(scales.dtype),
            words,
            scales,
            biases,
            transpose=transpose,
            group_size=self.group_size,
            bits=self.bits,
        )
        return product.astype(mx.float32)


def _in_fast_dtype(packed: Arrays) -> Arrays:
    # Half precision takes 45 times as long on the CPU backend.
    words, scales, biases = packed
    if device.is_cpu():
        return words, scales.astype(mx.float32), biases.astype(mx.float32)
    return words, scales, biases


def _group_selector(scales: mx.array) -> mx.array:
    """Return f32 [G, 1, G, 1]: 1 where a row's group is the coordinate's."""
    return mx.eye(scales.shape[2])[:, None, :, None]


def _dot_columns(rows: mx.array, columns: Sequence[mx.array]) -> mx.array:
    """Return inner products with tokens whose coordinates i, i + n, ... are in column i of n."""
    n = len(columns)
    first, *others = (rows[..., i::n] @ column.swapaxes(-1, -2) for i, column in enumerate(columns))
    return sum(others, start=first)


def _weigh_columns(weights: mx.array, columns: Sequence[mx.array]) -> mx.array:
    """Return weighted sums of such tokens, their coordinates in order."""
    products = [weights @ column for column in columns]
    return mx.stack(products, axis=-1).reshape(*weights.shape[:-1], -1)
