"""What a parsed answer is made of, piece by piece, and whole.

Immutable values. An answer that isn't streamed is `assemble` of the same deltas, so that both forms
say the same.
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Text:
    """Content for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins. `index` counts the calls of the answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments: all fragments of one index, joined, are JSON."""

    index: int
    fragment: str


Delta = Text | CallStart | Arguments


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Assembled:
    text: str
    calls: tuple[Call, ...]


def assemble(deltas: Iterable[Delta]) -> Assembled:
    text: list[str] = []
    names: dict[int, CallStart] = {}
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        match delta:
            case Text():
                text.append(delta.text)
            case CallStart():
                names[delta.index] = delta
            case Arguments():
                arguments.setdefault(delta.index, []).append(delta.fragment)
    calls = (
        Call(start.id, start.name, "".join(arguments.get(index, ())))
        for index, start in names.items()
    )
    return Assembled("".join(text), tuple(calls))


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Neighbours of one kind in one delta; empty ones left out."""
    result: list[Delta] = []
    for delta in deltas:
        last = result[-1] if result else None
        if isinstance(delta, Text) and isinstance(last, Text):
            result[-1] = Text(last.text + delta.text)
        elif (
            isinstance(delta, Arguments)
            and isinstance(last, Arguments)
            and last.index == delta.index
        ):
            result[-1] = replace(last, fragment=last.fragment + delta.fragment)
        elif not _is_empty(delta):
            result.append(delta)
    return result


def _is_empty(delta: Delta) -> bool:
    match delta:
        case Text():
            return not delta.text
        case Arguments():
            return not delta.fragment
        case CallStart():
            return False


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class Numbering:
    """Gives the calls of one answer their indices and ids."""

    def __init__(self, make_id: Callable[[], str] = new_call_id) -> None:
        self._make_id = make_id
        self.count = 0

    def start(self, name: str) -> CallStart:
        start = CallStart(self.count, self._make_id(), name)
        self.count += 1
        return start
