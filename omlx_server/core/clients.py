"""The client of the work at hand, and how clients share a queue."""

from collections import Counter
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Final, TypeVar

_Owner = TypeVar("_Owner", bound=Hashable)

CLIENT: Final[ContextVar[bytes]] = ContextVar("client", default=b"")
"""The sender of the request at hand: its API key, else its address. Empty for our own work."""


def may_wait(queued: Counter[_Owner], owner: _Owner, most: int) -> bool:
    """Return whether one more entry of `owner` may join a queue of `most` places."""
    waiting = queued.total()
    if waiting < most:
        return True
    # Half as many more places are for owners below their share.
    return waiting < most + most // 2 and (queued[owner] + 1) * len({*queued, owner}) <= most
