"""Which part of a conversation that outgrew its context is kept. Pure.

A client sends the whole history with every turn and remembers nothing of what was left out. So the
cut is worked out anew from the history: what every request before this one, of which the history
tells, must have cut. As long as nothing more has to go, the same is kept, and with it the cached
prefix; when something must, more goes at once, down to a low-water mark.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Overflow:
    """What happens to a conversation that outgrew its context. `low_water` is a share of that.

    error      it is refused
    truncate   the oldest turns go, as few as need be
    rolling    they go down to the low-water mark
    """

    policy: Literal["error", "truncate", "rolling"] = "error"
    low_water: float = 0.5


@dataclass(frozen=True, slots=True)
class Unit:
    """What goes or stays as one. `turn` counts from 0. `head`: what the user said, which stays
    while its turn is the last; the others are rounds: an answer, or calls with their results.

    `asks`: the model is asked behind it: it ends with the user's words or with results.
    """

    turn: int
    cost: int
    head: bool = False
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """Costs in tokens. Over `limit` something goes, until there are `low` at most. `front` is what
    always stays: the system message and the tools."""

    limit: int
    low: int
    front: int = 0

    def kept(self, units: Sequence[Unit]) -> list[bool] | None:
        """For each unit whether it stays. None where what must stay is over the limit."""
        cut, total = _Cut(units), self.front
        for position, unit in enumerate(units):
            total += unit.cost
            asks = unit.asks or position == len(units) - 1
            if asks and total > self.limit:
                total = cut.down_to(self.low, total, position)
        return cut.state if total <= self.limit else None


class _Cut:
    """Goes over the units once, however often there is something to cut: before `_next` all are
    gone but `_heads`, which are of one turn."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.state = [True] * len(units)
        self._units = units
        self._next = 0
        self._heads: list[int] = []

    def down_to(self, low: int, total: int, last: int) -> int:
        """Earlier turns go whole, then rounds of the turn of the unit at `last`, but not that one.
        Returns what is left of `total`, which is more than `low`."""
        turn = self._units[last].turn
        if self._heads and self._units[self._heads[0]].turn != turn:
            total -= sum(map(self._drop, self._heads))
            self._heads.clear()
        while self._next < last:
            unit = self._units[self._next]
            if total <= low and (unit.turn == turn or self._begins(self._next)):
                break
            if unit.turn == turn and unit.head:
                self._heads.append(self._next)
            else:
                total -= self._drop(self._next)
            self._next += 1
        return total

    def _begins(self, position: int) -> bool:
        """Whether the unit is the first of its turn."""
        return position == 0 or self._units[position - 1].turn != self._units[position].turn

    def _drop(self, position: int) -> int:
        """Returns its cost."""
        self.state[position] = False
        return self._units[position].cost


def just_enough(units: Sequence[Unit], limit: int, front: int) -> list[bool] | None:
    """Without regard to other requests: no more goes than this one needs."""
    return Window(limit, limit, front).kept([replace(unit, asks=False) for unit in units])
