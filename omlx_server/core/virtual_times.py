"""Fair sharing: the owner whose work has taken the fewest seconds is next. Newcomers start at
the clock of their level (the virtual clock of WF2Q+, J. Bennett and H. Zhang). Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection

Owner = tuple[bytes, ...]
"""The path to an owner: (client, conversation). The client can't choose the first."""


class VirtualTimes:
    """Virtual times of owners at every level, in seconds."""

    def __init__(self) -> None:
        self._had: dict[Owner, float] = {}
        self._clocks = defaultdict[Owner, float](float)  # of the owners directly below each
        self._at_work: set[Owner] = set()
        self._beside: Counter[Owner] = Counter()  # how many of them are at work

    def charge(self, owner: Owner, seconds: float) -> None:
        for path in _paths(owner):
            self._had[path] = self._had.get(path, 0.0) + seconds
            self._clocks[path[:-1]] += seconds / max(1, self._beside[path[:-1]])

    def settle(self, owners: Collection[Owner]) -> None:
        """Set the owners that have work now."""
        paths = {path for owner in owners for path in _paths(owner)}
        if paths == self._at_work:
            return
        least = dict[Owner, float]()
        for path in paths & self._at_work:
            had, above = self._had.get(path, 0.0), path[:-1]
            least[above] = min(had, least.get(above, had))
        for above, had in least.items():
            self._clocks[above] = max(self._clocks[above], had)
        for path in paths - self._at_work:
            self._had[path] = max(self._had.get(path, 0.0), self._clocks[path[:-1]])
        self._at_work, self._beside = paths, Counter(path[:-1] for path in paths)
        self._forget()

    def rank(self, owner: Owner) -> tuple[float, ...]:
        return tuple([self._had.get(path, 0.0) for path in _paths(owner)])

    def lead(self, owner: Owner, other: Owner) -> float:
        """Return by how many seconds `owner` is ahead where the paths part."""
        for one, another in zip(_paths(owner), _paths(other), strict=True):
            if one != another:
                return self._had.get(one, 0.0) - self._had.get(another, 0.0)
        return 0.0

    def _forget(self) -> None:
        for path in self._had.keys() - self._at_work:
            above = path[:-1]
            if (above and above not in self._at_work) or self._had[path] <= self._clocks[above]:
                del self._had[path]
        for above in self._clocks.keys() - self._at_work - {()}:
            del self._clocks[above]
        if not self._at_work:
            self._had.clear()


def _paths(owner: Owner) -> list[Owner]:
    return [owner[:depth] for depth in range(1, len(owner) + 1)]
