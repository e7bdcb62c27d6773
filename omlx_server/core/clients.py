"""The client of the work at hand, and how clients share a queue."""

from collections import Counter
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Final, TypeVar

_Owner = TypeVar("_Owner", bound=Hashable)

CLIENT: Final[ContextVar[bytes]] = ContextVar("client", default=b"")
"""The sender of the current request: its API key, else its address. Empty for the server's own
work."""


def may_wait(held: Counter[_Owner], own: _Owner, most: int) -> bool:
    """Return whether one more entry of `own` may join a queue of `most` places. Owners below their
    share of `most` get half as many places more."""
    waiting = held.total()
    if waiting < most:
        return True
    return waiting < most + most // 2 and (held[own] + 1) * len({*held, own}) <= most
