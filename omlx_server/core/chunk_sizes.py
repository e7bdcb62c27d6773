"""Prefill chunk sizes, chosen from measured times while a model loads, then fixed. Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CANDIDATES = (256, 512, 1024, 2048)
"""The sizes that are tried, in tokens."""
BESIDE_SECONDS = 0.25
"""The longest chunk beside rows that decode: the gap in each stream during a long prefill."""
ALONE_SECONDS = 2.0
"""The longest chunk while no row decodes: how long a new request waits."""
# The speed-up that makes a larger chunk worth its waits and memory.
_LEAST_SPEED_UP = 1.05


@dataclass(frozen=True, slots=True)
class ChunkPace:
    """Measured seconds of a model's chunks, by their tokens and by their depth."""

    layers: int
    growing: int  # layers whose attention sees all tokens
    by_size: tuple[tuple[int, float], ...]  # tokens and seconds, all with the same middle
    # Positions, from that middle on, and the seconds by which a token takes longer there.
    by_depth: tuple[tuple[float, float], ...]

    def chunk_seconds(self, tokens: int, start: int) -> float:
        attention = self.growing * self.attention_seconds(tokens, start)
        return self.layers * self.fixed_seconds(tokens) + attention

    def fixed_seconds(self, tokens: int) -> float:
        """Return the part of a layer's seconds that does not depend on the depth."""
        most, longest = self.by_size[-1]
        is_longer = tokens > most
        seconds = longest * tokens / most if is_longer else _interpolate(self.by_size, tokens)
        return seconds / self.layers

    def attention_seconds(self, tokens: int, start: int) -> float:
        """Return what the depth adds to a layer that attends to all tokens."""
        if not self.growing:
            return 0.0
        return tokens * _interpolate(self.by_depth, start + tokens / 2) / self.growing


def _interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return y at x between `points`, the first y before them, and on the last line after them."""
    first_x, first_y = points[0]
    if x <= first_x or len(points) == 1:
        return first_y
    index = min(bisect_left(points, (x,)), len(points) - 1)
    (x1, y1), (x2, y2) = points[index - 1 : index + 1]
    return y1 + (y2 - y1) * (x - x1) / (x2 - x1)


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """Tokens of a chunk `beside` running rows, and `alone`, a multiple of it."""

    beside: int
    alone: int
    token_seconds: float = field(default=0.0, compare=False)
    pace: ChunkPace | None = field(default=None, compare=False)

    def __str__(self) -> str:
        if self.beside == self.alone:
            return f"{self.beside} tokens"
        return f"{self.beside} tokens beside running answers, {self.alone} alone"


def candidates(block: int, most: int) -> list[int]:
    """Return possible sizes, ascending: multiples of `block` (a power of two) up to `most`."""
    sizes = sorted({max(size, block) for size in CANDIDATES})
    return [size for size in sizes if size <= most] or [min(sizes[0], most)]


def choose_sizes(smallest: int, seconds: Mapping[int, float]) -> ChunkSizes:
    """Choose by the `seconds` of a chunk of each size. The smallest is allowed in any case."""
    beside = _best_within(smallest, seconds, BESIDE_SECONDS)
    alone = _best_within(smallest, seconds, ALONE_SECONDS)
    return ChunkSizes(beside, alone, seconds.get(alone, 0.0) / alone)


def _best_within(smallest: int, seconds: Mapping[int, float], longest: float) -> int:
    best = smallest
    for size in sorted(seconds):
        if size > best and seconds[size] <= longest and best in seconds:
            is_faster = size / seconds[size] >= _LEAST_SPEED_UP * best / seconds[best]
            best = size if is_faster else best
    return best
