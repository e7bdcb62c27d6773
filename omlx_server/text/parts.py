"""What a parsed answer is made of, piece by piece, and whole.

Immutable values. An answer that isn't streamed is `assemble` of the same parts, so that both forms
say the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Text:
    """Content for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers: shown apart, never part of the content."""

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


Part = Text | Reasoning | CallStart | Arguments


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
    reasoning: str = ""


def assemble(parts: Iterable[Part]) -> Assembled:
    text: list[str] = []
    reasoning: list[str] = []
    starts: dict[int, CallStart] = {}
    arguments: dict[int, list[str]] = {}
    for part in parts:
        match part:
            case Text():
                text.append(part.text)
            case Reasoning():
                reasoning.append(part.text)
            case CallStart():
                starts[part.index] = part
            case Arguments():
                arguments.setdefault(part.index, []).append(part.fragment)
    calls = (
        Call(start.id, start.name, "".join(arguments.get(index, ())))
        for index, start in starts.items()
    )
    return Assembled("".join(text), tuple(calls), "".join(reasoning))


def merged(parts: Iterable[Part]) -> list[Part]:
    """Neighbours of one kind as one part; empty ones left out."""
    result: list[Part] = []
    for part in parts:
        joined = _joined(result[-1], part) if result else None
        if joined is not None:
            result[-1] = joined
        elif not _is_empty(part):
            result.append(part)
    return result


def _joined(last: Part, part: Part) -> Part | None:
    """Both as one, where they are of one kind."""
    match last, part:
        case Text(), Text():
            return Text(last.text + part.text)
        case Reasoning(), Reasoning():
            return Reasoning(last.text + part.text)
        case Arguments(), Arguments() if last.index == part.index:
            return replace(last, fragment=last.fragment + part.fragment)
    return None


def _is_empty(part: Part) -> bool:
    match part:
        case Text() | Reasoning():
            return not part.text
        case Arguments():
            return not part.fragment
        case CallStart():
            return False
