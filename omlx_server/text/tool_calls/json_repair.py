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
    **dict.fromkeys(("true", "True"), "true"),
    **dict.fromkeys(("false", "False"), "false"),
    **dict.fromkeys(("null", "None", "undefined", "NaN"), "null"),
}
_CLOSERS = {"{": "}", "[": "]"}
_OPENERS = {"}": "{", "]": "["}
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGUN = re.compile(r"\\u[0-9a-fA-F]{0,3}")


class _Expect(Enum):
    """The kind of text that must come next. AFTER: a comma or the end of the innermost."""

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
        self._output: list[Fragment] = []
        self._open_brackets: list[str] = []
        self._expect = _Expect.VALUE
        self._before_value = ""  # what is written before the next value, should one come
        self._root_key: str | None = None  # of the root's value under way
        self._quote = ""  # the quote that ends the string under way
        self._escape_begun = ""
        self._key: str | None = None  # the key being read, in its JSON form
        self._last_key = ""
        self._word = ""  # a number, a literal or text without quotes, under way

    @property
    def done(self) -> bool:
        return self._expect is _Expect.DONE

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    def feed(self, char: str) -> list[Fragment]:
        """Read one character; return the output that is certain now."""
        self._read(char)
        return self._pop_output()

    def close(self) -> list[Fragment]:
        if self._quote:
            self._end_string()
        self._end_word(cut=True)
        while self._open_brackets:
            self._close_innermost()
        self._expect = _Expect.DONE
        return self._pop_output()

    def _pop_output(self) -> list[Fragment]:
        output, self._output = self._output, []
        return output

    def _read(self, char: str) -> None:
        if self._expect is _Expect.DONE:
            return
        if self._quote:
            self._read_in_string(char)
        elif char in _SPACE:
            self._end_word()
            self._before_value += char
        elif char in "{}[],:\"'":
            self._end_word()
            self._read_structural(char)
        else:
            self._word += char

    def _read_structural(self, char: str) -> None:
        match char:
            case "{" | "[":
                self._open_container(char)
            case "}" | "]":
                self._close_container(_OPENERS[char])
            case ",":
                self._read_comma()
            case ":":
                if self._expect is _Expect.COLON:
                    self._before_value += ":"
                    self._expect = _Expect.VALUE
            case _:
                self._start_string(char)

    # Structure

    def _open_container(self, char: str) -> None:
        if not self._prepare_item() or self._expect is _Expect.KEY:
            return
        self._begin_value()
        self._emit(char)
        self._open_brackets.append(char)
        self._expect = self._expected_item()

    def _close_container(self, opener: str) -> None:
        if opener not in self._open_brackets:
            return
        while self._open_brackets[-1] != opener:
            self._close_innermost()
        self._close_innermost()

    def _close_innermost(self) -> None:
        # A comma or a key waits for a value that doesn't come.
        if not self._before_value.strip():
            self._emit(self._before_value)
        self._before_value = ""
        self._emit(_CLOSERS[self._open_brackets.pop()])
        self._end_value()

    def _read_comma(self) -> None:
        if self._expect is _Expect.AFTER:
            self._before_value += ","
        elif self._expect is not _Expect.KEY and self._open_brackets[-1:] == ["{"]:
            # A key without a value is dropped; the comma before it stays.
            self._before_value = "," if self._before_value.lstrip().startswith(",") else ""
        else:
            return
        self._expect = self._expected_item()

    def _expected_item(self) -> _Expect:
        return _Expect.KEY if self._open_brackets[-1] == "{" else _Expect.VALUE

    def _prepare_item(self) -> bool:
        """Insert a missing comma or colon. Return False where no item can stand."""
        if self._expect is _Expect.AFTER:
            self._before_value += ","
            self._expect = self._expected_item()
        elif self._expect is _Expect.COLON:
            self._before_value += ":"
            self._expect = _Expect.VALUE
        return self._expect in (_Expect.KEY, _Expect.VALUE)

    def _begin_value(self) -> None:
        self._emit(self._before_value)
        self._before_value = ""
        if len(self._open_brackets) == 1 and self._open_brackets[0] == "{":
            self._root_key = self._last_key

    def _end_value(self) -> None:
        if len(self._open_brackets) == 1 and self._root_key is not None:
            self._output.append(Fragment("", self._root_key, last=True))
            self._root_key = None
        self._expect = _Expect.AFTER if self._open_brackets else _Expect.DONE

    # Words and strings

    def _end_word(self, cut: bool = False) -> None:
        word, self._word = self._word, ""
        if not word or self._expect is _Expect.AFTER or not self._prepare_item():
            return
        if self._expect is _Expect.KEY:
            self._key = json.dumps(word)
            self._end_key()
        elif value := _word_as_json(word, cut):
            self._begin_value()
            self._emit(value)
            self._end_value()

    def _start_string(self, quote: str) -> None:
        if not self._prepare_item():
            return
        self._quote = quote
        if self._expect is _Expect.KEY:
            self._key = ""
        else:
            self._begin_value()
        self._add_to_string('"')

    def _read_in_string(self, char: str) -> None:
        if self._escape_begun:
            self._read_in_escape(char)
        elif char == "\\":
            self._escape_begun = char
        elif char == self._quote:
            self._end_string()
        else:
            self._add_to_string(_escaped(char))

    def _read_in_escape(self, char: str) -> None:
        begun, self._escape_begun = self._escape_begun, ""
        if _ESCAPE.fullmatch(begun + char):
            self._add_to_string(begun + char)
        elif _ESCAPE_BEGUN.fullmatch(begun + char):
            self._escape_begun = begun + char
        elif len(begun) > 1:  # \u without its four digits: the backslash is a character
            self._add_to_string("\\" + begun)
            self._read_in_string(char)
        else:
            self._add_to_string(char if char == "'" else "\\\\" + _escaped(char))

    def _end_string(self) -> None:
        self._add_to_string('"')
        self._quote = ""
        if self._key is None:
            self._end_value()
        else:
            self._end_key()

    def _end_key(self) -> None:
        key, self._key = self._key or '""', None
        self._before_value += key
        self._last_key = json.loads(key)
        self._expect = _Expect.COLON

    def _add_to_string(self, text: str) -> None:
        if self._key is None:
            self._emit(text)
        else:
            self._key += text

    def _emit(self, text: str) -> None:
        if text:
            self._output.append(Fragment(text, self._root_key))


def repair_json(text: str) -> str:
    """Return the JSON at the beginning of `text`, completed and repaired."""
    repair = JsonRepair()
    fragments = [fragment for char in text for fragment in repair.feed(char)]
    return "".join(fragment.text for fragment in [*fragments, *repair.close()])


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if char < " " or char == '"' else char


def _word_as_json(word: str, cut: bool) -> str:
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
