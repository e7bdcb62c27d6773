"""Long work on the mlx thread, done in slices between the steps of models. Pure."""

from collections.abc import Generator
from typing import Any, TypeVar

A = TypeVar("A")

Work = Generator[None, None, A]
"""A generator that does one slice of work per yield and returns the result."""


def begin(work: Work[Any]) -> None:
    next(work, None)
    work.close()


def finish(work: Work[A]) -> A:
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: A = end.value
            return result
