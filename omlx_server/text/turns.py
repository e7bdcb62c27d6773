"""Divides the messages of a conversation into units that go or stay together.

A turn begins with the user's words; rounds follow: an answer, or calls with all their results.
System messages in front belong to no turn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from omlx_server.text.overflow import Unit

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
