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
        state, total = [True] * len(units), self.front
        for position, unit in enumerate(units):
            total += unit.cost
            asks = unit.asks or position == len(units) - 1
            if asks and total > self.limit:
                total = self._cut(units, state, position, total)
        return state if total <= self.limit else None

    def _cut(self, units: Sequence[Unit], state: list[bool], last: int, total: int) -> int:
        """Earlier turns go whole, then rounds of the turn at hand, but not its last one."""
        turn = units[last].turn
        for position in range(last):
            unit = units[position]
            begins = position == 0 or units[position - 1].turn != unit.turn
            if total <= self.low and (unit.turn == turn or begins):
                break
            if state[position] and not (unit.turn == turn and unit.head):
                state[position] = False
                total -= unit.cost
        return total


def just_enough(units: Sequence[Unit], limit: int, front: int) -> list[bool] | None:
    """Without regard to other requests: no more goes than this one needs."""
    return Window(limit, limit, front).kept([replace(unit, asks=False) for unit in units])
