"""Long work on the mlx thread, done in slices, one between two steps. Pure."""

from collections.abc import Generator
from typing import TypeVar

A = TypeVar("A")

Work = Generator[None, None, A]
"""Does a slice up to each yield; returns the result."""


def finish(work: Work[A]) -> A:
    """Do all that is left of it at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: A = end.value
            return result
