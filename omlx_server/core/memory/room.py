"""Memory for work that is no step of a conversation: jobs ask for it before they begin. Pure."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

A = TypeVar("A")
Y = TypeVar("Y")

Claim = AbstractContextManager[int]
"""So much of what was asked for is set aside until it is left."""


class Room(Protocol):
    """What a job may take of the memory. Owned by the mlx thread."""

    def check(self, nbytes: int) -> None:
        """Raises NoMemory for what would not fit if nobody else were at work."""
        ...

    def claim(self, needs: Sequence[int]) -> Generator[None, None, Claim]:
        """Set aside the largest of `needs` (bytes, rising) that fits now, and say how many of them
        that is: one at least, for which others may have to end first. Yields while it waits, and
        raises as `check` when they can't make that room."""
        ...


class Boundless:
    """Where memory is not watched."""

    def check(self, nbytes: int) -> None:
        return

    def claim(self, needs: Sequence[int]) -> Generator[None, None, Claim]:
        yield from ()
        return nullcontext(len(needs))


def within(room: Room, nbytes: int, work: Generator[Y, None, A]) -> Generator[Y | None, None, A]:
    """Work that takes so many bytes from its beginning to its end, once there is room for them."""
    room.check(nbytes)
    with (yield from room.claim([nbytes])):
        return (yield from work)
