"""Bytes of the caches of live sequences, by the class of each layer's cache.

GROWING   all tokens, in buffers that grow by 256: plain and quantised ones
RING      the window's tokens; a chunk longer than one token stands behind them until the next
CONSTANT  a recurrent state
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

GROWTH = 256
"""By how many places the buffers of mlx-lm's caches grow, and of ours."""


class Keeps(Enum):
    """What a layer's cache keeps of a sequence."""

    GROWING = "growing"
    RING = "ring"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class LayerKv:
    """The caches of `count` layers that are alike. `nbytes` is that of one row: of each token, or
    of the whole state. `window` is a ring's."""

    keeps: Keeps
    nbytes: int
    count: int = 1
    window: int = 0


def places(tokens: int) -> int:
    """For how many tokens a growing cache has room when it holds so many."""
    return -(-tokens // GROWTH) * GROWTH


def grows(context: int, tokens: int) -> bool:
    """Whether so many more tokens need larger buffers."""
    return places(context) < context + tokens


def layer_bytes(layer: LayerKv, tokens: int, chunk: int = 1) -> int:
    """Of one of these layers, for one row of `tokens` tokens, of which the last `chunk` were
    written at once."""
    if layer.keeps is Keeps.CONSTANT:
        return layer.nbytes
    if layer.keeps is Keeps.RING:
        longest = layer.window + max(chunk, 1) - 1
        return layer.nbytes * min(places(tokens) if chunk <= 1 else tokens, longest)
    return layer.nbytes * places(tokens)


def cache_bytes(layers: Iterable[LayerKv], rows: int, tokens: int, chunk: int = 1) -> int:
    """Of all layers, for rows of `tokens` tokens each."""
    return rows * sum(layer.count * layer_bytes(layer, tokens, chunk) for layer in layers)


def held_bytes(layers: Iterable[LayerKv], rows: int, longest: int, chunk: int = 1) -> int:
    """At most of all layers, for rows that are padded to `longest` tokens, whatever their buffers
    went through: those of a batch are made to fit and then grow, so they end anywhere."""
    if longest == 0:
        return 0
    return rows * sum(layer.count * _at_most(layer, longest, chunk) for layer in layers)


def behind_rings(layers: Iterable[LayerKv], chunk: int) -> int:
    """Of a row of which `chunk` tokens were read at once: what rings hold besides their window."""
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
    """Of the layer that holds the most of one row."""
    return max((layer_bytes(layer, tokens, chunk) for layer in layers), default=0)


def largest_at_most(layers: Iterable[LayerKv], tokens: int) -> int:
    """The same, whatever its buffers went through."""
    return max((_at_most(layer, tokens, 1) for layer in layers), default=0)
