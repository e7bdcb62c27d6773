"""What all models have counted, those that left as well: totals never go down.

The mlx thread notes who comes and who leaves. Any thread may read: it sees one state or the next,
never a model in none of both, nor in both.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from omlx_server.core.memory.guard import Rung
from omlx_server.engine.messages import Counted, ModelId, Status


class Member(Protocol):
    """A model at work."""

    status: Status

    @property
    def rungs(self) -> Counter[Rung]:
        """Of the ladder of relief. mlx thread."""
        ...

    def tally(self) -> Counted:
        """What it has counted up to now; `status` may be a turn behind. mlx thread."""
        ...


@dataclass(frozen=True, slots=True)
class _Books:
    """Who has left, by name; who is here, by number."""

    left: Mapping[str, Counted] = field(default_factory=dict)
    here: Mapping[ModelId, tuple[str, Member]] = field(default_factory=dict)


class Census:
    """`rungs` is what all that left have used of the ladder of relief."""

    def __init__(self) -> None:
        self._books = _Books()
        self.rungs: Counter[Rung] = Counter()

    @property
    def counted(self) -> dict[str, Counted]:
        """All models that were ever loaded, by name."""
        books = self._books
        found = dict(books.left)
        for name, member in books.here.values():
            status = member.status
            now = Counted(status.cache, status.preempted, status.stalls)
            found[name] = now.after(found.get(name, Counted()))
        return found

    def comes(self, id: ModelId, name: str, member: Member) -> None:
        """It is loaded."""
        books = self._books
        self._books = replace(books, here={**books.here, id: (name, member)})

    def leaves(self, id: ModelId) -> None:
        """Its counters stay. It may never have come."""
        books = self._books
        if id not in books.here:
            return
        name, member = books.here[id]
        earlier = books.left.get(name, Counted())
        gone = Counted().after(member.tally()).after(earlier)
        here = {other: known for other, known in books.here.items() if other != id}
        self._books = _Books({**books.left, name: gone}, here)
        self.rungs += member.rungs
