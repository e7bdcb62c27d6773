"""Memory for jobs, which ask for it before they begin. Pure."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

A = TypeVar("A")
Y = TypeVar("Y")

Claim = AbstractContextManager[int]
"""Memory set aside until this context is left. Entering it gives the number, from 1, of the need
that was met."""


class Room(Protocol):
    """Gives jobs their memory. Owned by the mlx thread."""

    def check(self, nbytes: int) -> None:
        """Raise NoMemory if `nbytes` bytes would not fit even if nothing else ran."""
        ...

    def claim(self, needs: Sequence[int]) -> Generator[None, None, Claim]:
        """Set aside the largest of `needs` (bytes, rising) that fits. Yields while none fits;
        raises NoMemory if none ever will."""
        ...


class Boundless:
    """Room where memory is not watched."""

    def check(self, nbytes: int) -> None:
        return

    def claim(self, needs: Sequence[int]) -> Generator[None, None, Claim]:
        yield from ()
        return nullcontext(len(needs))


def within(room: Room, nbytes: int, work: Generator[Y, None, A]) -> Generator[Y | None, None, A]:
    """Do `work` once `nbytes` bytes are set aside for it. Returns its result."""
    room.check(nbytes)
    with (yield from room.claim([nbytes])):
        return (yield from work)
