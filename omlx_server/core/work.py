"""Long work on the mlx thread, done in slices between the steps of models. Pure."""

from collections.abc import Generator
from typing import Any, TypeVar

A = TypeVar("A")

Work = Generator[None, None, A]
"""A generator that does one slice of work per yield and returns the result."""


def begin(work: Work[Any]) -> None:
    """Do the first slice only."""
    next(work, None)
    work.close()


def finish(work: Work[A]) -> A:
    """Do all slices at once, and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: A = end.value
            return result
