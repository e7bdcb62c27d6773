"""Decides which part of a conversation that outgrew its context is kept.

The cuts of earlier requests are worked out anew, so that the same turns and their cached prefix
stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Overflow:
    """The rule for a conversation that outgrew its context.

    error      the request is refused
    truncate   the oldest turns go, as few as need be
    rolling    the oldest turns go until the rest is down to `low_water`, a share of the context
    """

    policy: Literal["error", "truncate", "rolling"] = "error"
    low_water: float = 0.5


@dataclass(slots=True)
class Unit:
    """Messages that go or stay together."""

    turn: int  # the turn, from 0
    cost: int  # tokens
    # the user's words, which stay while their turn is the last; other units are rounds: an answer,
    # or calls with their results
    head: bool = False
    # it ends with the user's words or with results, so the model was asked behind it
    asks: bool = False
    messages: list[int] = field(default_factory=list)  # their positions in the conversation


@dataclass(frozen=True, slots=True)
class Window:
    """Bounds in tokens. A prompt over `limit` loses its oldest turns, then the oldest rounds of
    the last turn, down to `low`. `front`: the system message and the tools, which always stay."""

    limit: int
    low: int
    front: int = 0

    def kept(self, units: Sequence[Unit]) -> list[bool] | None:
        """Return whether each unit stays; None where what must stay costs more than `limit`."""
        # Each prompt that was too long, in the order in which they were sent, is cut once more.
        cut, total = _Cut(units), self.front
        for position, unit in enumerate(units):
            total += unit.cost
            ends_prompt = unit.asks or position == len(units) - 1
            if ends_prompt and total > self.limit:
                total = cut.down_to(self.low, total, position)
        return cut.stays if total <= self.limit else None


class _Cut:
    """Cuts the units from the oldest on, in one pass; `stays` tells of each whether it stays. All
    before position `_next` are dropped but the user's words of the turn under way, `_heads`."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.stays = [True] * len(units)
        self._units = units
        self._next = 0
        self._heads: list[int] = []

    def down_to(self, low: int, total: int, last: int) -> int:
        """Drop units before `last` until `total` is at most `low`; return the new total. Earlier
        turns go whole, words included; of the turn of `last` only rounds go."""
        turn = self._units[last].turn
        if self._heads and self._units[self._heads[0]].turn != turn:
            total -= sum(map(self._drop, self._heads))
            self._heads.clear()
        while self._next < last:
            unit = self._units[self._next]
            may_stop_here = unit.turn == turn or self._begins_turn(self._next)
            if total <= low and may_stop_here:
                break
            if unit.turn == turn and unit.head:
                self._heads.append(self._next)
            else:
                total -= self._drop(self._next)
            self._next += 1
        return total

    def _begins_turn(self, position: int) -> bool:
        return position == 0 or self._units[position - 1].turn != self._units[position].turn

    def _drop(self, position: int) -> int:
        self.stays[position] = False
        return self._units[position].cost


def just_enough(units: Sequence[Unit], limit: int, front: int) -> list[bool] | None:
    """Return whether each unit stays when only as many turns go as need be; None where what must
    stay costs more than `limit`."""
    # Without earlier requests there is one cut: the one that this prompt needs.
    return Window(limit, limit, front).kept([replace(unit, asks=False) for unit in units])


Message = Mapping[str, Any]


def front_length(messages: Sequence[Message]) -> int:
    """Return how many system messages stand in front."""
    return next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))


def units_of(messages: Sequence[Message], costs: Sequence[int]) -> list[Unit]:
    """Return the units of all turns. `costs`: the tokens of each message."""
    units: list[Unit] = []
    for position in range(front_length(messages), len(messages)):
        role = messages[position]["role"]
        unit, is_user = units[-1] if units else None, role == "user"
        # Of several messages by the user without an answer between, only the first begins a turn.
        if unit is None or role == "assistant" or (is_user and not unit.head):
            turn = unit.turn + is_user if unit else 0
            unit = Unit(turn, cost=0, head=is_user)
            units.append(unit)
        unit.messages.append(position)
        unit.cost += costs[position]
        unit.asks = unit.asks or role in ("user", "tool")
    return units
