"""Whose turn it is among the owners of work, when something scarce has to be shared. Pure.

Each owner has a virtual time: the seconds that its work has taken. The owner that is furthest
behind is next. Owners are nested: a client (an API key, or an address) has conversations, which
share what the client gets. So whatever a client makes up about its conversations changes only its
own part. Time at rest is not saved up: an owner whose work begins again starts level with the
others.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable

Owner = tuple[bytes, ...]
"""The path to an owner, from what a client can't choose to what it can: (client, conversation)."""


class VirtualTimes:
    """Virtual times of owners at every level, in seconds."""

    def __init__(self) -> None:
        self._had: dict[Owner, float] = {}
        self._start: dict[Owner, float] = {}  # of newcomers directly below this owner
        self._at_work: set[Owner] = set()

    def charge(self, owner: Owner, seconds: float) -> None:
        """Advance the virtual time of `owner`, and of each owner above it."""
        for path in _above(owner):
            self._had[path] = self._had.get(path, 0.0) + seconds

    def settle(self, owners: Collection[Owner]) -> None:
        """Note that exactly these `owners` have work now. Those who had none before start level
        with the one beside them that is furthest behind, or, where all are new, with the last one
        that left. Owners without work are forgotten when they would start level."""
        paths = {path for owner in owners for path in _above(owner)}
        if paths == self._at_work:
            return
        for parent, had in self._beside(self._at_work & paths).items():
            self._raise_start(parent, min(had))
        stayed = {path[:-1] for path in self._at_work & paths}
        for parent, had in self._beside(self._at_work - paths).items():
            if parent not in stayed:
                self._raise_start(parent, max(had))
        for path in paths - self._at_work:
            self._had[path] = max(self._had.get(path, 0.0), self._start.get(path[:-1], 0.0))
        self._at_work = paths
        self._forget()

    def rank(self, owner: Owner) -> tuple[float, ...]:
        """The sort key of an owner's work: the lowest is next."""
        return tuple([self._had.get(path, 0.0) for path in _above(owner)])

    def _beside(self, paths: Iterable[Owner]) -> dict[Owner, list[float]]:
        """The times of `paths` by the owner above them."""
        beside = defaultdict[Owner, list[float]](list)
        for path in paths:
            beside[path[:-1]].append(self._had.get(path, 0.0))
        return beside

    def _raise_start(self, parent: Owner, seconds: float) -> None:
        self._start[parent] = max(self._start.get(parent, 0.0), seconds)

    def _forget(self) -> None:
        for path in sorted(self._had.keys() - self._at_work, key=len):
            above = path[:-1]
            if (above and above not in self._had) or self._had[path] <= self._start.get(above, 0.0):
                del self._had[path]
                self._start.pop(path, None)


def _above(owner: Owner) -> list[Owner]:
    """The owner and all above it, the outermost first."""
    return [owner[:depth] for depth in range(1, len(owner) + 1)]
