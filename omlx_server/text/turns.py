"""The messages of a conversation as units that go or stay together. Pure.

A turn begins with the user's words. Behind them come rounds: an answer, or calls with all their
results. System messages at the front belong to no turn; later ones belong to theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omlx_server.core.window import Unit

Message = Mapping[str, Any]


@dataclass(slots=True)
class Group:
    """Positions of messages, and whether they are the user's."""

    turn: int
    head: bool
    messages: list[int] = field(default_factory=list)


def front_of(messages: Sequence[Message]) -> int:
    """How many messages stand before the first turn."""
    return next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))


def groups_of(messages: Sequence[Message]) -> list[Group]:
    """Those of all turns, in order."""
    groups: list[Group] = []
    for position in range(front_of(messages), len(messages)):
        role = messages[position]["role"]
        last = groups[-1] if groups else None
        if last is None or _begins(role, last):
            groups.append(_next(role, last))
        groups[-1].messages.append(position)
    return groups


def units_of(
    messages: Sequence[Message], groups: Sequence[Group], costs: Sequence[int]
) -> list[Unit]:
    """`costs`: of each message, in tokens."""
    return [
        Unit(
            group.turn,
            sum(costs[position] for position in group.messages),
            head=group.head,
            asks=any(messages[p]["role"] in ("user", "tool") for p in group.messages),
        )
        for group in groups
    ]


def _begins(role: str, last: Group) -> bool:
    """Whether a message of this role stands for itself. Of several by the user, with no answer
    between them, none does."""
    return role == "assistant" or (role == "user" and not last.head)


def _next(role: str, last: Group | None) -> Group:
    if last is None:
        return Group(0, head=role == "user")
    return Group(last.turn + (role == "user"), head=role == "user")
