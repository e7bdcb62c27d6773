"""Long work on the mlx thread, done in slices between the steps of models. Pure."""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, TypeVar

A = TypeVar("A")

Work = Generator[Any, None, A]
"""A generator that does one slice of work per yield and returns the result. A load yields the bytes
of weights that a slice has read; what other work yields means nothing."""


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


def counted(work: Work[A], note: Callable[[int], None]) -> Work[A]:
    """Do `work`, and note the bytes that each slice has read."""
    with closing(work):
        while True:
            try:
                nbytes = next(work)
            except StopIteration as end:
                result: A = end.value
                return result
            note(nbytes or 0)
            yield nbytes
