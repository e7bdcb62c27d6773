"""How many tokens of a prompt are computed in one forward, chosen from the times of some. Pure.

The sizes belong to a model on a machine. They are chosen when the model is loaded and stay the same
while it is there, so that no prompt is cut by when it came.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

CANDIDATES = (256, 512, 1024, 2048)
"""The sizes that are tried, in tokens."""
BESIDE_SECONDS = 0.25
"""A chunk beside rows that decode takes no longer, unless the smallest candidate does. It is the
gap between two tokens that a reader sees in every stream while a long prompt is prefilled."""
ALONE_SECONDS = 2.0
"""A chunk beside which nobody decodes takes no longer, unless the smallest candidate does. So long
does a request wait that comes while a long prompt is prefilled."""
# A larger chunk must compute so many times the tokens per second of a smaller one: it makes others
# wait longer and takes more memory, and measured times differ by some percent from run to run.
_GAIN = 1.05


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """Tokens of one chunk: `beside` rows that decode or other models at work, and `alone`, which is
    a multiple of it. `token_seconds`: how long a token of a chunk `alone` took, 0 where that was
    not measured."""

    beside: int
    alone: int
    token_seconds: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        if self.beside == self.alone:
            return f"{self.beside} tokens"
        return f"{self.beside} tokens beside running answers, {self.alone} alone"


def candidates(block: int, most: int) -> list[int]:
    """The sizes to choose from, in ascending order, at least one: multiples of `block` tokens (a
    power of two), so that blocks end where chunks do, of at most `most` tokens."""
    sizes = sorted({max(size, block) for size in CANDIDATES})
    return [size for size in sizes if size <= most] or [min(sizes[0], most)]


def choose(smallest: int, seconds: Mapping[int, float]) -> ChunkSizes:
    """The sizes for a model whose chunks took `seconds`, by their tokens. The `smallest` candidate
    is taken where no larger one is allowed and worth it."""
    beside, alone = (_best(smallest, seconds, most) for most in (BESIDE_SECONDS, ALONE_SECONDS))
    return ChunkSizes(beside, alone, seconds.get(alone, 0.0) / alone)


def _best(smallest: int, seconds: Mapping[int, float], longest: float) -> int:
    best = smallest
    for size in sorted(seconds):
        if size > best and seconds[size] <= longest and best in seconds:
            faster = size / seconds[size] >= _GAIN * best / seconds[best]
            best = size if faster else best
    return best
