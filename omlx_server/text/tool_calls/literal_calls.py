"""Reads calls whose arguments are literals: `[f(city="Rome", days=3)]`, and Gemma's
`call:f{city:<|"|>Rome<|"|>,days:3}`."""

import re
from collections.abc import Callable, Sequence

from omlx_server.core.crash import Crash, guarded
from omlx_server.text.encoding.utf8 import whole
from omlx_server.text.tool_calls.plain_json import dumped, json_object
from omlx_server.text.tool_calls.values import literal

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


def quoted_calls(quote: str) -> Parse:
    def parse(text: str) -> Sequence[Call]:
        calls = guarded(_Quoted(text, quote).calls)
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
        calls.append((whole(match[1]), json_object(arguments)))
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
        arguments[whole(match[1])] = _python_value(text[match.end() : end].strip())
        position = end + 1
    return arguments


def _python_value(text: str) -> str:
    value = literal(text)
    if isinstance(value, Crash):
        raise value.error
    return dumped(value)


def _end_of(text: str, position: int, *, of_value: bool = False) -> int:
    """Return where the bracket at `position` ends, or the value there, before a comma."""
    open_ones: list[str] = []
    while position < len(text):
        char = text[position]
        if of_value and char == "," and not open_ones:
            return position
        if char in "\"'":
            position = _end_of_string(text, position) - 1
        elif char in _CLOSERS:
            open_ones.append(_CLOSERS[char])
        elif char in ")]}" and (not open_ones or char != open_ones.pop()):
            break
        position += 1
        if not (open_ones or of_value):
            return position
        if len(open_ones) > _MAX_DEPTH:
            break
    if of_value and position == len(text) and not open_ones:
        return position
    raise ValueError("brackets do not match")


def _end_of_string(text: str, position: int) -> int:
    string = _STRING.match(text, position)
    if string is None:
        raise ValueError("a string without an end")
    return string.end()


class _Quoted:
    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._at = 0

    def calls(self) -> list[Call]:
        calls: list[Call] = []
        self._skip("")
        while self._at < len(self._text):
            match = _QUOTED_CALL.match(self._text, self._at)
            if match is None:
                raise ValueError("no call")
            self._at = match.end()
            calls.append((whole(match[1]), self._object(0)))
            self._skip(",;")
        return calls

    def _object(self, depth: int) -> str:
        self._expect("{")
        members: dict[str, str] = {}
        while self._peek() != "}":
            is_quoted = self._text.startswith(self._quote, self._at)
            key = self._string() if is_quoted else self._bare(":")
            self._expect(":")
            members[whole(key.strip().strip("\"'"))] = self._value(depth)
            self._skip(",")
        self._expect("}")
        return json_object(members)

    def _value(self, depth: int) -> str:
        if depth > _MAX_DEPTH:
            raise ValueError("too deep")
        first = self._peek()
        if self._text.startswith(self._quote, self._at):
            return dumped(self._string())
        if first == "{":
            return self._object(depth + 1)
        if first == "[":
            return self._list(depth)
        text = self._bare(",}]").strip()
        if not text:
            raise ValueError("no value")
        value = literal(text)
        return dumped(text if isinstance(value, Crash) else value)

    def _list(self, depth: int) -> str:
        self._expect("[")
        items: list[str] = []
        while self._peek() != "]":
            items.append(self._value(depth + 1))
            self._skip(",")
        self._expect("]")
        return f"[{', '.join(items)}]"

    def _string(self) -> str:
        begin = self._at + len(self._quote)
        end = self._text.index(self._quote, begin)
        self._at = end + len(self._quote)
        return self._text[begin:end]

    def _bare(self, ends: str) -> str:
        begin = self._at
        while (char := self._text[self._at]) not in ends:
            self._at = _end_of_string(self._text, self._at) if char == '"' else self._at + 1
        return self._text[begin : self._at]

    def _peek(self) -> str:
        self._skip("")
        return self._text[self._at]

    def _expect(self, char: str) -> None:
        if self._peek() != char:
            raise ValueError(f"no {char}")
        self._at += 1

    def _skip(self, chars: str) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        if self._at < len(self._text) and chars and self._text[self._at] in chars:
            self._at += 1
            self._skip("")
