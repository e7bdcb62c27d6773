"""Counters of all models, unloaded ones too. The mlx thread writes, any thread reads."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from omlx_server.engine.messages import Counted, ModelId, Status


class CountedModel(Protocol):
    status: Status

    def tally(self) -> Counted: ...


@dataclass(frozen=True, slots=True)
class _Books:
    left: Mapping[str, Counted] = field(default_factory=dict)
    here: Mapping[ModelId, tuple[str, CountedModel]] = field(default_factory=dict)


class Census:
    def __init__(self) -> None:
        self._books = _Books()

    @property
    def left(self) -> Collection[Counted]:
        return self._books.left.values()

    @property
    def counted(self) -> dict[str, Counted]:
        """Counters of all models that were ever loaded, by name."""
        books = self._books
        counts = dict(books.left)
        for name, member in books.here.values():
            counts[name] = member.status.counted.after(counts.get(name, Counted()))
        return counts

    def comes(self, id: ModelId, name: str, member: CountedModel) -> None:
        books = self._books
        self._books = replace(books, here={**books.here, id: (name, member)})

    def leaves(self, id: ModelId) -> None:
        """Note that a model was unloaded, and keep its counters."""
        books = self._books
        if id not in books.here:
            return
        name, member = books.here[id]
        earlier = books.left.get(name, Counted())
        total = Counted().after(member.tally()).after(earlier)
        here = {other: entry for other, entry in books.here.items() if other != id}
        self._books = _Books({**books.left, name: total}, here)
