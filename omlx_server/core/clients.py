"""The client of the work at hand, and how clients share a queue."""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable
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


Owner = tuple[bytes, ...]
"""The path to an owner: (client, conversation). The client can't choose the first."""


class VirtualTimes:
    """Virtual times of owners at every level, in seconds."""

    def __init__(self) -> None:
        # A level is the path above some owners: all clients', or one client's conversations'.
        self._seconds: dict[Owner, float] = {}
        self._at_work: set[Owner] = set()
        self._clocks = defaultdict[Owner, float](float)  # of each level
        self._busy_owners: Counter[Owner] = Counter()  # the number at work in each level

    def charge(self, owner: Owner, seconds: float) -> None:
        for path in _paths(owner):
            self._seconds[path] = self._seconds.get(path, 0.0) + seconds
            level = path[:-1]
            self._clocks[level] += seconds / max(1, self._busy_owners[level])

    def settle(self, owners: Collection[Owner]) -> None:
        """Set the owners that have work now. Clocks never lag behind all who stay at work."""
        paths = {path for owner in owners for path in _paths(owner)}
        if paths == self._at_work:
            return
        least = dict[Owner, float]()
        for path in paths & self._at_work:  # those who stay
            seconds, level = self._seconds.get(path, 0.0), path[:-1]
            least[level] = min(seconds, least.get(level, seconds))
        for level, seconds in least.items():
            self._clocks[level] = max(self._clocks[level], seconds)
        for path in paths - self._at_work:  # newcomers
            self._seconds[path] = max(self._seconds.get(path, 0.0), self._clocks[path[:-1]])
        self._at_work, self._busy_owners = paths, Counter(path[:-1] for path in paths)
        self._forget_idle()

    def rank(self, owner: Owner) -> tuple[float, ...]:
        """Return the virtual times on an owner's path: the lowest is next."""
        return tuple([self._seconds.get(path, 0.0) for path in _paths(owner)])

    def lead(self, owner: Owner, other: Owner) -> float:
        """Return by how many seconds `owner` is ahead where the paths part."""
        for path, other_path in zip(_paths(owner), _paths(other), strict=True):
            if path != other_path:
                return self._seconds.get(path, 0.0) - self._seconds.get(other_path, 0.0)
        return 0.0

    def _forget_idle(self) -> None:
        for path in self._seconds.keys() - self._at_work:
            level = path[:-1]
            level_is_idle = bool(level) and level not in self._at_work
            if level_is_idle or self._seconds[path] <= self._clocks[level]:
                del self._seconds[path]
        for level in self._clocks.keys() - self._at_work - {()}:
            del self._clocks[level]
        if not self._at_work:
            self._seconds.clear()


def _paths(owner: Owner) -> list[Owner]:
    return [owner[:depth] for depth in range(1, len(owner) + 1)]
