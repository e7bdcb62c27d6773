"""The parts of a parsed answer, streamed or whole. Immutable values."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Content for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """The text of a model's thoughts. Never part of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a call. `index` counts the calls of the answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of call `index`; all fragments of one call, joined, are JSON."""

    index: int
    fragment: str


Part = Text | Thought | CallStart | Arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call. `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Assembled:
    """A whole answer."""

    text: str
    calls: tuple[ToolCall, ...]
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
            case Thought():
                reasoning.append(part.text)
            case CallStart():
                starts[part.index] = part
            case Arguments():
                arguments.setdefault(part.index, []).append(part.fragment)
    calls = (
        ToolCall(start.id, start.name, "".join(arguments.get(index, ())))
        for index, start in starts.items()
    )
    return Assembled("".join(text), tuple(calls), "".join(reasoning))


def merged(parts: Iterable[Part]) -> list[Part]:
    """Join neighbours of one kind and leave out empty parts."""
    result: list[Part] = []
    for part in parts:
        match (result[-1] if result else None), part:
            case _, Text("") | Thought("") | Arguments(_, ""):
                continue
            case Text(before), Text(more):
                result[-1] = Text(before + more)
            case Thought(before), Thought(more):
                result[-1] = Thought(before + more)
            case Arguments(index, before), Arguments(other, more) if other == index:
                result[-1] = Arguments(index, before + more)
            case _:
                result.append(part)
    return result
