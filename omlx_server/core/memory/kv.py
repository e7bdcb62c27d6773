"""Bytes of the caches of live sequences, by the class of each layer's cache.

GROWING   all tokens of each row, in buffers that grow by 256; rows of about one length together
PADDED    as GROWING, but the rows of a batch are padded to the longest
RING      the window's tokens; a chunk longer than one token stands behind them until the next
CONSTANT  a recurrent state
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

GROWTH = 256
"""By how many places the buffers of mlx-lm's caches grow, and of ours."""


def reach(tokens: int) -> int:
    """How long the longest row can be that is held together with one of so many tokens: 15 % longer
    or `GROWTH` tokens, whichever is more."""
    return tokens + max(GROWTH, tokens * 3 // 20)


class Keeps(Enum):
    """What a layer's cache keeps of a sequence."""

    GROWING = "growing"
    PADDED = "padded"
    RING = "ring"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class LayerKv:
    """The caches of `count` layers that are alike. `nbytes` is that of one row: of each token, or
    of the whole state. `window` is a ring's. With `reads_padding` attention reads all rows in
    one array, in which they are as long as the longest. A `latent` is made into keys and values of
    all heads, of all tokens, where a row computes several tokens."""

    keeps: Keeps
    nbytes: int
    count: int = 1
    window: int = 0
    reads_padding: bool = False
    latent: bool = False

    @property
    def is_padded(self) -> bool:
        """Whether attention reads the padding of shorter rows."""
        return self.reads_padding or self.keeps is Keeps.PADDED


def places(tokens: int) -> int:
    """For how many tokens a growing cache has room when it holds so many."""
    return -(-tokens // GROWTH) * GROWTH


def places_with_room(tokens: int) -> int:
    """For how many tokens a cache is made that holds so many: one more at least, so that the next
    step copies nothing."""
    return places(tokens + 1)


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


def held_bytes(layers: Iterable[LayerKv], rows: Sequence[int], chunk: int = 1) -> int:
    """At most of all layers, for rows of so many tokens each in one batch, whatever their buffers
    went through: they are made to fit and then grow, so they end anywhere."""
    longest = max(rows, default=0)
    if longest == 0:
        return 0
    together = sum(grouped(rows)) + GROWTH * len(rows)

    def of(layer: LayerKv) -> int:
        if layer.keeps is Keeps.GROWING:
            return layer.nbytes * together
        return len(rows) * _at_most(layer, longest, chunk)

    return sum(layer.count * of(layer) for layer in layers)


def referred_bytes(layers: Iterable[LayerKv], tokens: int) -> int:
    """What growing layers hold of so many tokens: bytes that blocks hold, and rows refer to."""
    growing = (layer for layer in layers if layer.keeps is Keeps.GROWING)
    return tokens * sum(layer.count * layer.nbytes for layer in growing)


def grouped(rows: Sequence[int]) -> list[int]:
    """To how many tokens each row is padded at most where rows of about one length are together."""
    ordered = sorted(rows)
    if not ordered or ordered[-1] <= reach(ordered[0]):
        return ordered[-1:] * len(ordered)
    return [ordered[bisect_right(ordered, reach(tokens)) - 1] for tokens in ordered]


def seen_together(
    layers: Iterable[LayerKv], rows: Sequence[int], leaving: Sequence[int] = ()
) -> int:
    """How many tokens a decode of these rows attends to for each row, padding counted, on average;
    a share of a token counts as one. Padded rows stay as wide as those that leave until they are
    copied."""
    if not rows:
        return 0
    if any(layer.is_padded for layer in layers):
        return max((*rows, *leaving))
    return -(-sum(grouped(rows)) // len(rows))


def behind_rings(layers: Iterable[LayerKv], chunk: int) -> int:
    """Of a row of which `chunk` tokens were computed at once: what rings hold besides their
    window."""
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
