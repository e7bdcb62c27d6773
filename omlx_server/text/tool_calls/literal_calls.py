"""Reads calls whose arguments are literals: `[f(city="Rome", days=3)]`, and Gemma's
`call:f{city:<|"|>Rome<|"|>,days:3}`."""

import re
from collections.abc import Callable, Sequence

from omlx_server.core.crash import Crash, guarded
from omlx_server.text.encoding.utf8 import without_surrogates
from omlx_server.text.tool_calls.plain_json import json_object, to_json
from omlx_server.text.tool_calls.values import parse_literal

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
