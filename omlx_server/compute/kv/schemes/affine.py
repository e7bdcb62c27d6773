"""MLX's own quantisation: each group of coordinates has codes, a scale and a bias."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Unpack

import mlx.core as mx

from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes import tiles
from omlx_server.compute.kv.schemes.base import Arrays, Partial, Scheme, Scoring
from omlx_server.core.memory.kv import TileSizes

_MANY_ROWS = 64
_TILE_OF_MANY_ROWS = 512
# The numbers that a tile unpacks to should stay in a processor's cache.
_NUMBERS_PER_TILE = 1 << 20
# For memory plans. On a GPU few rows read all keys at once, without unpacking them.
TILE_SIZES = TileSizes(_MANY_ROWS, 0, _NUMBERS_PER_TILE, _TILE_OF_MANY_ROWS)
BITS = (2, 3, 4, 6, 8)
GROUP_SIZES = (32, 64, 128)


def count(bits: int) -> int:
    """Return how many codes share one or three bytes."""
    return (8 if 8 % bits == 0 else 24) // bits


def unpack_columns(packed: mx.array, bits: int) -> Sequence[mx.array]:
    """Unpack u32 [..., D * bits / 32] into n arrays f32 [..., D / n]; the i-th has i, i + n, ..."""
    units = packed.view(mx.uint8)
    if 8 % bits:
        triples = units.reshape(*units.shape[:-1], -1, 3)
        units = _join()(triples[..., 0], triples[..., 1], triples[..., 2])
    unpacked: Sequence[mx.array] = _split(bits)(units)
    return unpacked


@cache
def _split(bits: int) -> Callable[[mx.array], Sequence[mx.array]]:
    shifts = [bits * i for i in range(count(bits))]
    lowest = (1 << bits) - 1

    def split(units: mx.array) -> list[mx.array]:
        return [((units >> shift) & lowest).astype(mx.float32) for shift in shifts]

    return mx.compile(split, shapeless=True)  # sizes change with every token


@cache
def _join() -> Callable[[mx.array, mx.array, mx.array], mx.array]:
    def join(low: mx.array, middle: mx.array, high: mx.array) -> mx.array:
        wide = [unit.astype(mx.uint32) for unit in (low, middle, high)]
        return wide[0] | (wide[1] << 8) | (wide[2] << 16)

    return mx.compile(join, shapeless=True)


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
        rows, columns = rows.astype(mx.float32), unpack_columns(words, self.bits)
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
        columns, scales = unpack_columns(words, self.bits), scales.swapaxes(-1, -2)
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


@dataclass(frozen=True, slots=True)
class Affine(Scheme):
    """The `Scheme` of `bits` a coordinate. Raises ValueError for numbers unknown to MLX."""

    bits: int
    group_size: int = 64

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"MLX quantises to {_listed(BITS)} bits, not to {self.bits}")
        if self.group_size not in GROUP_SIZES:
            raise ValueError(
                f"MLX quantises in groups of {_listed(GROUP_SIZES)}, not of {self.group_size}"
            )

    @property
    def name(self) -> str:
        return f"affine-{self.bits}b-g{self.group_size}"

    def check(self, head_dim: int) -> None:
        if head_dim % self.group_size:
            fitting = [size for size in GROUP_SIZES if head_dim % size == 0]
            way_out = f"{_listed(fitting)} would" if fitting else "no size that MLX knows does"
            raise ValueError(
                f"a group size of {self.group_size} does not divide its head dim of {head_dim}; "
                + way_out
            )

    def quantize_keys(self, x: mx.array) -> Arrays:
        return tuple(mx.quantize(x, group_size=self.group_size, bits=self.bits))

    quantize_values = quantize_keys

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> mx.array:
        stored = tiles_for(queries, keys, values, self.bits, self.group_size)
        return tiles.attend(queries, stored, **scoring)

    def part(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> Partial:
        stored = tiles_for(queries, keys, values, self.bits, self.group_size)
        return tiles.attend_partly(queries, stored, **scoring)


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
