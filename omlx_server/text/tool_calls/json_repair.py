"""Passes JSON on as it comes in pieces, and repairs it.

Invariants: valid JSON comes out unchanged; the output so far plus that of `close` is always valid;
emitted text is never taken back.
"""

import json
import re
from dataclasses import dataclass
from enum import Enum

_SPACE = " \t\n\r"
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_LITERALS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
    "undefined": "null",
    "NaN": "null",
}
_CLOSERS = {"{": "}", "[": "]"}
_OPENERS = {"}": "{", "]": "["}
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGUN = re.compile(r"\\u[0-9a-fA-F]{0,3}")


class _Expect(Enum):
    KEY = 1
    COLON = 2
    VALUE = 3
    AFTER = 4
    DONE = 5


@dataclass(frozen=True, slots=True)
class Fragment:
    """`member`: the key of the root object whose value the text belongs to. `last`: that value
    ends here."""

    text: str
    member: str | None
    last: bool = False


class JsonRepair:
    """Reads one JSON object or list; ignores what follows."""

    def __init__(self) -> None:
        self._out: list[Fragment] = []
        self._stack: list[str] = []
        self._expect = _Expect.VALUE
        self._gap = ""  # what is written before the next value, should one come
        self._member: str | None = None
        self._quote = ""
        self._escape = ""
        self._key: str | None = None  # the key being read, in its JSON form
        self._last_key = ""
        self._word = ""

    @property
    def done(self) -> bool:
        return self._expect is _Expect.DONE

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    def feed(self, char: str) -> list[Fragment]:
        """Read one character; return the output that is certain now."""
        self._read(char)
        return self._taken()

    def close(self) -> list[Fragment]:
        if self._quote:
            self._end_string()
        self._end_word(cut=True)
        while self._stack:
            self._pop()
        self._expect = _Expect.DONE
        return self._taken()

    def _taken(self) -> list[Fragment]:
        out, self._out = self._out, []
        return out

    def _read(self, char: str) -> None:
        if self._expect is _Expect.DONE:
            return
        if self._quote:
            self._in_string(char)
        elif char in _SPACE:
            self._end_word()
            self._gap += char
        elif char in "{}[],:\"'":
            self._end_word()
            self._structural(char)
        else:
            self._word += char

    def _structural(self, char: str) -> None:
        match char:
            case "{" | "[":
                self._open(char)
            case "}" | "]":
                self._close(_OPENERS[char])
            case ",":
                self._comma()
            case ":":
                if self._expect is _Expect.COLON:
                    self._gap += ":"
                    self._expect = _Expect.VALUE
            case _:
                self._start_string(char)

    # Structure

    def _open(self, char: str) -> None:
        if not self._before_item() or self._expect is _Expect.KEY:
            return
        self._begin_value()
        self._emit(char)
        self._stack.append(char)
        self._expect = self._next_item()

    def _close(self, opener: str) -> None:
        if opener not in self._stack:
            return
        while self._stack[-1] != opener:
            self._pop()
        self._pop()

    def _pop(self) -> None:
        # A gap with a comma or a key in it waits for a value that doesn't come.
        if not self._gap.strip():
            self._emit(self._gap)
        self._gap = ""
        self._emit(_CLOSERS[self._stack.pop()])
        self._end_value()

    def _comma(self) -> None:
        if self._expect is _Expect.AFTER:
            self._gap += ","
        elif self._stack and not (self._expect is _Expect.KEY or self._stack[-1] == "["):
            # A key without a value is dropped; the comma before it stays.
            self._gap = "," if self._gap.lstrip().startswith(",") else ""
        else:
            return
        self._expect = self._next_item()

    def _next_item(self) -> _Expect:
        return _Expect.KEY if self._stack[-1] == "{" else _Expect.VALUE

    def _before_item(self) -> bool:
        """Insert a missing comma or colon. Return False where no item can stand."""
        if self._expect is _Expect.AFTER:
            self._gap += ","
            self._expect = self._next_item()
        elif self._expect is _Expect.COLON:
            self._gap += ":"
            self._expect = _Expect.VALUE
        return self._expect in (_Expect.KEY, _Expect.VALUE)

    def _begin_value(self) -> None:
        self._emit(self._gap)
        self._gap = ""
        if len(self._stack) == 1 and self._stack[0] == "{":
            self._member = self._last_key

    def _end_value(self) -> None:
        if len(self._stack) == 1 and self._member is not None:
            self._out.append(Fragment("", self._member, last=True))
            self._member = None
        self._expect = _Expect.AFTER if self._stack else _Expect.DONE

    # Words and strings

    def _end_word(self, cut: bool = False) -> None:
        word, self._word = self._word, ""
        if not word or self._expect is _Expect.AFTER or not self._before_item():
            return
        if self._expect is _Expect.KEY:
            self._key = json.dumps(word)
            self._end_key()
        elif value := _value_of(word, cut):
            self._begin_value()
            self._emit(value)
            self._end_value()

    def _start_string(self, quote: str) -> None:
        if not self._before_item():
            return
        self._quote = quote
        if self._expect is _Expect.KEY:
            self._key = ""
        else:
            self._begin_value()
        self._put('"')

    def _in_string(self, char: str) -> None:
        if self._escape:
            self._in_escape(char)
        elif char == "\\":
            self._escape = char
        elif char == self._quote:
            self._end_string()
        else:
            self._put(_escaped(char))

    def _in_escape(self, char: str) -> None:
        begun, self._escape = self._escape, ""
        if _ESCAPE.fullmatch(begun + char):
            self._put(begun + char)
        elif _ESCAPE_BEGUN.fullmatch(begun + char):
            self._escape = begun + char
        elif len(begun) > 1:
            self._put("\\" + begun)
            self._in_string(char)
        else:
            self._put(char if char == "'" else "\\\\" + _escaped(char))

    def _end_string(self) -> None:
        self._put('"')
        self._quote = ""
        if self._key is None:
            self._end_value()
        else:
            self._end_key()

    def _end_key(self) -> None:
        key, self._key = self._key or '""', None
        self._gap += key
        self._last_key = json.loads(key)
        self._expect = _Expect.COLON

    def _put(self, text: str) -> None:
        if self._key is None:
            self._emit(text)
        else:
            self._key += text

    def _emit(self, text: str) -> None:
        if text:
            self._out.append(Fragment(text, self._member))


def repaired(text: str) -> str:
    """Return the JSON at the beginning of `text`, completed and repaired."""
    repair = JsonRepair()
    fragments = [fragment for char in text for fragment in repair.feed(char)]
    return "".join(fragment.text for fragment in [*fragments, *repair.close()])


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if char < " " or char == '"' else char


def _value_of(word: str, cut: bool) -> str:
    """Return a bare word as JSON; "" drops the last one of a cut text."""
    if word in _LITERALS:
        return _LITERALS[word]
    if _NUMBER.fullmatch(word):
        return word
    if not cut:
        return json.dumps(word)
    for literal, value in _LITERALS.items():
        if literal.startswith(word):
            return value
    number = _NUMBER.match(word)
    return number.group() if number else ""
