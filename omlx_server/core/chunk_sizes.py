"""Prefill chunk sizes, chosen from measured times while a model loads, then fixed. Pure."""

from collections.abc import Mapping
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
class ChunkSizes:
    """Tokens of a chunk `beside` running rows, and `alone`, a multiple of it."""

    beside: int
    alone: int
    token_seconds: float = field(default=0.0, compare=False)

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
