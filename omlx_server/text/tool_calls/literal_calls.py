"""Reads calls whose arguments are literals: `[f(city="Rome", days=3)]`, and Gemma's
`call:f{city:<|"|>Rome<|"|>,days:3}`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from omlx_server.core.crash import Crash, guarded
from omlx_server.text.encoding.searching import begun_marker_length, without_surrogates
from omlx_server.text.parts import Arguments, Part, Text
from omlx_server.text.tool_calls.call_block import BlockBody
from omlx_server.text.tool_calls.values import json_object, parse_literal, to_json

_MOST_TRIES = 64
_MAX_CHARS = 2_000_000


_MAX_DEPTH = 100
_NAME = r"[^\s<>{}()\[\]\"',:=;]+"
_CALL = re.compile(rf"\s*({_NAME})\s*\(\s*")
_KEY = re.compile(rf"\s*({_NAME})\s*=\s*")
_QUOTED_CALL = re.compile(r"\s*call:([^\s<>{}()\[\]\"',=;]+)\s*(?=\{)")
_STRING = re.compile(r"""(["'])(?:\\.|(?!\1)[^\\])*+\1""", re.DOTALL)
_CLOSERS = {"(": ")", "[": "]", "{": "}"}

Call = tuple[str, str]
"""A call's name, and its arguments as JSON text."""

Parse = Callable[[str], Sequence[Call]]
"""The calls of a text that holds nothing else; none where it holds something else."""


def python_calls(text: str) -> Sequence[Call]:
    """Return the calls in Python's notation. Names and keys may have hyphens."""
    calls = guarded(_python_calls, text.strip())
    return [] if isinstance(calls, Crash) else calls


def quoted_call_parser(quote: str) -> Parse:
    def parse(text: str) -> Sequence[Call]:
        calls = guarded(_QuotedCalls(text, quote).calls)
        return [] if isinstance(calls, Crash) else calls

    return parse


def _python_calls(text: str) -> list[Call]:
    if text.startswith("["):
        if _end_of(text, 0) != len(text):
            raise ValueError("more than a list")
        text = text[1:-1].rstrip().removesuffix(",")
    calls, position = list[Call](), 0
    while position < len(text.rstrip()):
        match = _CALL.match(text, position)
        if match is None:
            raise ValueError("no call")
        end = _end_of(text, text.index("(", match.end(1)))
        arguments = _python_arguments(text[match.end() : end - 1])
        calls.append((without_surrogates(match[1]), json_object(arguments)))
        behind = text[end:].lstrip(" \t\r\n,;")
        position = len(text) - len(behind)
    return calls


def _python_arguments(text: str) -> dict[str, str]:
    arguments: dict[str, str] = {}
    position = 0
    while text[position:].strip():
        match = _KEY.match(text, position)
        if match is None:
            raise ValueError("no name of a parameter")
        end = _end_of(text, match.end(), of_value=True)
        arguments[without_surrogates(match[1])] = _python_value(text[match.end() : end].strip())
        position = end + 1
    return arguments


def _python_value(text: str) -> str:
    value = parse_literal(text)
    if isinstance(value, Crash):
        raise value.error
    return to_json(value)


def _end_of(text: str, position: int, *, of_value: bool = False) -> int:
    """Return where the bracket at `position` ends or, with `of_value`, the value there, before a
    comma."""
    closers: list[str] = []
    while position < len(text):
        char = text[position]
        if of_value and char == "," and not closers:
            return position
        if char in "\"'":
            position = _end_of_string(text, position) - 1
        elif char in _CLOSERS:
            closers.append(_CLOSERS[char])
        elif char in ")]}" and (not closers or char != closers.pop()):
            break
        position += 1
        if not (closers or of_value):  # the first bracket is closed
            return position
        if len(closers) > _MAX_DEPTH:
            break
    if of_value and position == len(text) and not closers:
        return position
    raise ValueError("brackets do not match")


def _end_of_string(text: str, position: int) -> int:
    string = _STRING.match(text, position)
    if string is None:
        raise ValueError("a string without an end")
    return string.end()


class _QuotedCalls:
    """Parses Gemma's calls. Raises ValueError or IndexError for other text."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._position = 0

    def calls(self) -> list[Call]:
        calls: list[Call] = []
        self._skip_space()
        while self._position < len(self._text):
            match = _QUOTED_CALL.match(self._text, self._position)
            if match is None:
                raise ValueError("no call")
            self._position = match.end()
            calls.append((without_surrogates(match[1]), self._read_object(0)))
            self._skip_space(",;")
        return calls

    def _read_object(self, depth: int) -> str:
        self._expect_char("{")
        members: dict[str, str] = {}
        while self._peek_char() != "}":
            is_quoted = self._text.startswith(self._quote, self._position)
            key = self._read_string() if is_quoted else self._read_bare(":")
            self._expect_char(":")
            members[without_surrogates(key.strip().strip("\"'"))] = self._read_value(depth)
            self._skip_space(",")
        self._expect_char("}")
        return json_object(members)

    def _read_value(self, depth: int) -> str:
        if depth > _MAX_DEPTH:
            raise ValueError("too deep")
        first_char = self._peek_char()
        if self._text.startswith(self._quote, self._position):
            return to_json(self._read_string())
        if first_char == "{":
            return self._read_object(depth + 1)
        if first_char == "[":
            return self._read_list(depth)
        text = self._read_bare(",}]").strip()
        if not text:
            raise ValueError("no value")
        value = parse_literal(text)
        return to_json(text if isinstance(value, Crash) else value)

    def _read_list(self, depth: int) -> str:
        self._expect_char("[")
        items: list[str] = []
        while self._peek_char() != "]":
            items.append(self._read_value(depth + 1))
            self._skip_space(",")
        self._expect_char("]")
        return f"[{', '.join(items)}]"

    def _read_string(self) -> str:
        begin = self._position + len(self._quote)
        end = self._text.index(self._quote, begin)
        self._position = end + len(self._quote)
        return self._text[begin:end]

    def _read_bare(self, ends: str) -> str:
        begin = self._position
        while (char := self._text[self._position]) not in ends:
            if char == '"':
                self._position = _end_of_string(self._text, self._position)
            else:
                self._position += 1
        return self._text[begin : self._position]

    def _peek_char(self) -> str:
        self._skip_space()
        return self._text[self._position]

    def _expect_char(self, char: str) -> None:
        if self._peek_char() != char:
            raise ValueError(f"no {char}")
        self._position += 1

    def _skip_space(self, and_one_of: str = "") -> None:
        while self._position < len(self._text) and self._text[self._position].isspace():
            self._position += 1
        if self._text.startswith(tuple(and_one_of), self._position):
            self._position += 1
            self._skip_space()


@dataclass(frozen=True, slots=True)
class LiteralShape:
    """The form of a block. `end`: the marker after it. `opening`: how it begins. `quote`: the
    marker around strings, if it may be a control token."""

    end: str
    opening: str
    parse: Parse
    quote: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.end, self.quote)


@dataclass(slots=True, eq=False)
class LiteralBody(BlockBody):
    """Parses the whole block at its end marker; at a later one where that was within a string."""

    shape: LiteralShape
    _text: str = field(default="", init=False)
    _has_opening: bool = field(default=False, init=False)
    _scanned: int = field(default=0, init=False)  # characters without an untried end marker
    _tries: int = field(default=0, init=False)

    def feed(self, text: str) -> list[Part]:
        self._text += text
        if not self._has_opening:
            stripped, opening = self._text.lstrip(), self.shape.opening
            self._has_opening = stripped.startswith(opening)
            if not opening.startswith(stripped[: len(opening)]):
                self._end_without_calls()
        may_hold_calls = self._has_opening
        while may_hold_calls and self.text_behind is None:
            may_hold_calls = self._try_at_next_end()
        return self._pop_parts()

    def finish(self) -> list[Part]:
        """Return the last parts. The end marker may be missing because it ended the answer."""
        if not self._add_calls(self._text):
            self._parts.append(Text(self.start_marker + self._text))
        self.text_behind = ""
        return self._pop_parts()

    def _try_at_next_end(self) -> bool:
        """Parse up to the next end marker. Return whether there was one."""
        end = self.shape.end
        place = self._text.find(end, self._scanned)
        if place < 0:
            begun_length = begun_marker_length(self._text, (end,))
            self._scanned = max(self._scanned, len(self._text) - begun_length)
            return False
        self._scanned = place + len(end)
        if self._add_calls(self._text[:place]):
            self.text_behind = self._text[self._scanned :]
        elif self._tries >= _MOST_TRIES:
            self._end_without_calls()
        return True

    def _add_calls(self, text: str) -> bool:
        """Return whether `text` is nothing but calls."""
        self._tries += 1
        calls = self.shape.parse(text) if len(text) < _MAX_CHARS else ()
        for name, arguments in calls:
            start = self.numbering.start(name)
            self._parts += [start, Arguments(start.index, arguments)]
        self._has_call = self._has_call or bool(calls)
        return bool(calls)

    def _end_without_calls(self) -> None:
        self._parts.append(Text(self.start_marker))
        self.text_behind = self._text
