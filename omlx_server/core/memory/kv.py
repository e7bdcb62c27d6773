"""Bytes of live caches, by the class of each layer's cache.

GROWING   all tokens of each row, in buffers that grow by 256; rows of similar length together
PADDED    as GROWING, but the rows of a batch are padded to the longest
RING      the window's tokens; a longer chunk stands behind them until the next decode
CONSTANT  a recurrent state
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

GROWTH = 256
"""The places by which the buffers of mlx-lm's caches grow, and ours."""


def reach(tokens: int) -> int:
    """Return the longest row that is grouped with this one."""
    return tokens + max(GROWTH, tokens * 3 // 20)


class Keeps(Enum):
    GROWING = "growing"
    PADDED = "padded"
    RING = "ring"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class LayerKv:
    """Caches of `count` equal layers. `nbytes` is per token of a row, or of the state.
    `reads_padding`: attention reads one padded array."""

    keeps: Keeps
    nbytes: int
    count: int = 1
    window: int = 0
    reads_padding: bool = False
    latent: bool = False

    @property
    def is_padded(self) -> bool:
        return self.reads_padding or self.keeps is Keeps.PADDED


def places(tokens: int) -> int:
    return -(-tokens // GROWTH) * GROWTH


def places_with_room(tokens: int) -> int:
    return places(tokens + 1)


def grows(context: int, tokens: int) -> bool:
    return places(context) < context + tokens


def layer_bytes(layer: LayerKv, tokens: int, chunk: int = 1) -> int:
    """Return the bytes of one layer for one row, its last `chunk` written at once."""
    if layer.keeps is Keeps.CONSTANT:
        return layer.nbytes
    if layer.keeps is Keeps.RING:
        longest = layer.window + max(chunk, 1) - 1
        return layer.nbytes * min(places(tokens) if chunk <= 1 else tokens, longest)
    return layer.nbytes * places(tokens)


def cache_bytes(layers: Iterable[LayerKv], rows: int, tokens: int, chunk: int = 1) -> int:
    return rows * sum(layer.count * layer_bytes(layer, tokens, chunk) for layer in layers)


def held_bytes(layers: Iterable[LayerKv], rows: Sequence[int], chunk: int = 1) -> int:
    """Return the most bytes of a batch of rows, however their buffers grew."""
    longest = max(rows, default=0)
    if longest == 0:
        return 0
    padded = sum(grouped(rows)) + GROWTH * len(rows)

    def of(layer: LayerKv) -> int:
        if layer.keeps is Keeps.GROWING:
            return layer.nbytes * padded
        return len(rows) * _at_most(layer, longest, chunk)

    return sum(layer.count * of(layer) for layer in layers)


def referred_bytes(layers: Iterable[LayerKv], tokens: int) -> int:
    growing = (layer for layer in layers if layer.keeps is Keeps.GROWING)
    return tokens * sum(layer.count * layer.nbytes for layer in growing)


def grouped(rows: Sequence[int]) -> list[int]:
    ordered = sorted(rows)
    if not ordered or ordered[-1] <= reach(ordered[0]):
        return ordered[-1:] * len(ordered)
    return [ordered[bisect_right(ordered, reach(tokens)) - 1] for tokens in ordered]


def attended_tokens(
    layers: Iterable[LayerKv], rows: Sequence[int], leaving: Sequence[int] = ()
) -> int:
    """Return the mean tokens that a row attends to, with padding, also beside `leaving` rows."""
    if not rows:
        return 0
    if any(layer.is_padded for layer in layers):
        return max((*rows, *leaving))
    return -(-sum(grouped(rows)) // len(rows))


def behind_rings(layers: Iterable[LayerKv], chunk: int) -> int:
    """Return what rings hold besides their window after a `chunk`."""
    rings = (layer for layer in layers if layer.keeps is Keeps.RING)
    return (chunk - 1) * sum(layer.count * layer.nbytes for layer in rings)


def _at_most(layer: LayerKv, tokens: int, chunk: int) -> int:
    if layer.keeps is Keeps.CONSTANT:
        return layer.nbytes
    room = tokens + GROWTH
    if layer.keeps is Keeps.RING:
        room = min(room, layer.window + max(chunk, 1) - 1)
    return layer.nbytes * room


def largest_layer(layers: Iterable[LayerKv], tokens: int, chunk: int = 1) -> int:
    return max((layer_bytes(layer, tokens, chunk) for layer in layers), default=0)


def largest_at_most(layers: Iterable[LayerKv], tokens: int) -> int:
    return max((_at_most(layer, tokens, 1) for layer in layers), default=0)
