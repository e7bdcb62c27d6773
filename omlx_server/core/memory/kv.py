"""Bytes of live caches, by what each layer's cache keeps."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

GROWTH = 256
"""The places by which the buffers of mlx-lm's caches grow, and ours."""


def longest_in_group(tokens: int) -> int:
    """Return the longest row that is longest_of_groups with this one."""
    return tokens + max(GROWTH, tokens * 3 // 20)


class Keeps(Enum):
    # All tokens of each row, in buffers that grow by 256; rows of similar length together.
    GROWING = "growing"
    PADDED = "padded"  # as GROWING, but the rows of a batch are padded to the longest
    RING = "ring"  # the window's tokens; a longer chunk stands behind them until the next decode
    CONSTANT = "constant"  # a recurrent state


@dataclass(frozen=True, slots=True)
class LayerKv:
    """Caches of `count` equal layers."""

    keeps: Keeps
    nbytes: int  # of a token of a row, or of the state
    count: int = 1
    window: int = 0  # tokens of a ring
    reads_padding: bool = False  # attention reads one padded array
    latent: bool = False  # keys and values are made of it

    @property
    def is_padded(self) -> bool:
        return self.reads_padding or self.keeps is Keeps.PADDED


def places(tokens: int) -> int:
    """Return the tokens for which a buffer of this many has room."""
    return -(-tokens // GROWTH) * GROWTH


def places_with_room(tokens: int) -> int:
    return places(tokens + 1)


def grows(context: int, tokens: int) -> bool:
    """Return whether buffers of `context` tokens must grow for `tokens` more."""
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
    padded_tokens = sum(longest_of_groups(rows)) + GROWTH * len(rows)
    nbytes = 0
    for layer in layers:
        if layer.keeps is Keeps.GROWING:
            nbytes += layer.count * layer.nbytes * padded_tokens
        else:
            nbytes += layer.count * len(rows) * _most_layer_bytes(layer, longest, chunk)
    return nbytes


def referred_bytes(layers: Iterable[LayerKv], tokens: int) -> int:
    # Only growing caches refer to tokens of blocks.
    growing = (layer for layer in layers if layer.keeps is Keeps.GROWING)
    return tokens * sum(layer.count * layer.nbytes for layer in growing)


def longest_of_groups(rows: Sequence[int]) -> list[int]:
    """Return for each row the tokens of the longest that is grouped with it, in rising order."""
    ordered = sorted(rows)
    if not ordered or ordered[-1] <= longest_in_group(ordered[0]):
        return ordered[-1:] * len(ordered)
    return [ordered[bisect_right(ordered, longest_in_group(tokens)) - 1] for tokens in ordered]


def attended_tokens(
    layers: Iterable[LayerKv], rows: Sequence[int], leaving: Sequence[int] = ()
) -> int:
    """Return the mean tokens that a row attends to, with padding, also beside `leaving` rows."""
    if not rows:
        return 0
    if any(layer.is_padded for layer in layers):
        return max((*rows, *leaving))
    return -(-sum(longest_of_groups(rows)) // len(rows))


def bytes_behind_rings(layers: Iterable[LayerKv], chunk: int) -> int:
    """Return what rings hold besides their window after a `chunk`."""
    rings = (layer for layer in layers if layer.keeps is Keeps.RING)
    return (chunk - 1) * sum(layer.count * layer.nbytes for layer in rings)


def _most_layer_bytes(layer: LayerKv, tokens: int, chunk: int) -> int:
    if layer.keeps is Keeps.CONSTANT:
        return layer.nbytes
    room = tokens + GROWTH
    if layer.keeps is Keeps.RING:
        room = min(room, layer.window + max(chunk, 1) - 1)
    return layer.nbytes * room


def largest_layer(layers: Iterable[LayerKv], tokens: int, chunk: int = 1) -> int:
    return max((layer_bytes(layer, tokens, chunk) for layer in layers), default=0)


def most_of_largest_layer(layers: Iterable[LayerKv], tokens: int) -> int:
    return max((_most_layer_bytes(layer, tokens, 1) for layer in layers), default=0)
