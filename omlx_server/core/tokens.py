"""What two token sequences have in common."""

from collections.abc import Sequence


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens they share at their start."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
