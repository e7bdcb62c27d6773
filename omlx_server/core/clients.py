"""For whom the work at hand is done, and how clients share places."""

from collections import Counter
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Final, TypeVar

_Owner = TypeVar("_Owner", bound=Hashable)

CLIENT: Final[ContextVar[bytes]] = ContextVar("client", default=b"")
"""Who sends the request at hand, by what a client can't make up: its key, else its address. Empty
for what the server does for itself."""


def may_wait(held: Counter[_Owner], own: _Owner, most: int) -> bool:
    """Whether one more of `own` may wait beside those that are `held`, where there is place for
    `most`. Half as many more may wait, of owners that have less than their share of `most`."""
    waiting = held.total()
    if waiting < most:
        return True
    return waiting < most + most // 2 and (held[own] + 1) * len({*held, own}) <= most
