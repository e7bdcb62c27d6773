"""Reads one call in JSON, character by character. No part comes before the text is certainly a
call; the fragments of its arguments, joined, are valid JSON."""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import regex

from omlx_server.text.encoding.searching import marker_at, without_surrogates
from omlx_server.text.parts import Arguments, CallStart, Part, Text
from omlx_server.text.tool_calls.call_block import BlockBody
from omlx_server.text.tool_calls.json_repair import Fragment, JsonRepair, repair_json
from omlx_server.text.tool_calls.values import Numbering

_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "tool_name")
_PLAIN_MEMBERS = (*_NAMES, "type", "id", "tool_call_id", *_ARGUMENTS)
_MAX_HEADER_CHARS = 256
_CHARS_BETWEEN = " \t\r\n,;[]}`"
# What may close a list, or the fence around it, behind the last call.
_LIST_END = re.compile(r"\s*[\]}]+|\s*`{1,3}")


class NamedCall:
    """The arguments of a call after a header with its name."""

    failed, started = False, True  # as those of ObjectCall

    def __init__(self, numbering: Numbering, name: str) -> None:
        self.repair = JsonRepair()
        start = numbering.start(without_surrogates(name))
        self._index = start.index
        self._unsent: list[Part] = [start]

    def feed(self, char: str) -> list[Part]:
        return self._parts_of(self.repair.feed(char))

    def end(self, cut: bool) -> list[Part]:
        return self._parts_of(self.repair.close())

    def _parts_of(self, fragments: list[Fragment]) -> list[Part]:
        parts, self._unsent = self._unsent, []
        return parts + [Arguments(self._index, f.text) for f in fragments]


class ObjectCall:
    """A call as one object, `{"name": "f", "arguments": {…}}`, keys in any order, or, with
    `by_name`, `{"f": {…}}`. With `names` it needs one of them and no other keys. `failed`: it is
    no call. `started`: it certainly is one."""

    def __init__(
        self, numbering: Numbering, names: Collection[str] | None = None, *, by_name: bool = False
    ) -> None:
        self.repair = JsonRepair()
        self.failed = False
        self._numbering = numbering
        self._names = names
        self._by_name = by_name
        self._start: CallStart | None = None
        self._name_json = ""
        self._name: str | None = None
        self._arguments_key: str | None = None  # the member that holds the arguments
        self._arguments = ""  # read, but not passed on
        self._can_pass_arguments = False  # an object as it comes, another value once it ended
        self._arguments_ended = False
        self._other_members: dict[str, str] = {}  # their JSON texts by key

    @property
    def started(self) -> bool:
        return self._start is not None

    def feed(self, char: str) -> list[Part]:
        parts = self._read_fragments(self.repair.feed(char))
        return parts + self._decide_at_end() if self.repair.done else parts

    def end(self, cut: bool) -> list[Part]:
        """End the object early: at a marker, or with `cut` at the end of the answer."""
        if cut and self._name is None:  # never complete a name
            self.failed = True
            return []
        parts = self._read_fragments(self.repair.close())
        if not cut:
            return parts + self._decide_at_end()
        self.failed = not self.started
        return parts

    def _read_fragments(self, fragments: list[Fragment]) -> list[Part]:
        for fragment in fragments:
            if fragment.member is not None:
                self._read_member(fragment.member, fragment)
        return [] if self.failed else self._pop_parts()

    def _read_member(self, member: str, fragment: Fragment) -> None:
        known_members = self._names if self._by_name else _PLAIN_MEMBERS
        if self._names is not None and known_members is not None and member not in known_members:
            self.failed = self.failed or not self.started
        if self._by_name:
            self._name = without_surrogates(member) if self._name is None else self._name
            self._add_arguments(member, fragment)
        elif member in _NAMES and self._name is None:
            self._name_json += fragment.text
            if fragment.last:
                self._name = _parse_name(self._name_json)
                self.failed = self._names is not None and self._name not in self._names
        elif member in _ARGUMENTS:
            self._add_arguments(member, fragment)
        elif not self.started:
            self._other_members[member] = self._other_members.get(member, "") + fragment.text

    def _add_arguments(self, member: str, fragment: Fragment) -> None:
        if self._arguments_ended or self._arguments_key not in (None, member):
            return
        self._arguments_key = member
        self._arguments += fragment.text
        self._can_pass_arguments = self._can_pass_arguments or self._arguments.startswith("{")
        if fragment.last and not self._can_pass_arguments:
            self._set_arguments(as_arguments(self._arguments))
        self._arguments_ended = fragment.last

    def _set_arguments(self, arguments: str) -> None:
        self._arguments, self._can_pass_arguments, self._arguments_ended = arguments, True, True

    def _pop_parts(self) -> list[Part]:
        if self._name is None or not self._can_pass_arguments:
            return []
        parts: list[Part] = []
        if self._start is None:
            self._start = self._numbering.start(self._name)
            parts.append(self._start)
        arguments, self._arguments = self._arguments, ""
        return [*parts, Arguments(self._start.index, arguments)]

    def _decide_at_end(self) -> list[Part]:
        """Decide whether an object that ended without starting a call is one."""
        if self.started or self.failed:
            return []
        if self._names is None:  # then a nested function, and no arguments at all, will do
            if self._name is None:
                self._read_function(self._other_members.get("function", ""))
            is_plain = self._other_members.keys() <= set(_PLAIN_MEMBERS)
            if self._name is not None and not self._can_pass_arguments and is_plain:
                self._set_arguments("{}")
        self.failed = self._name is None or not self._can_pass_arguments
        return self._pop_parts()

    def _read_function(self, text: str) -> None:
        try:
            function: Any = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(function, dict):
            self._name = _parse_name(text)
            return
        self._name = _parse_name(json.dumps(function.get("name")))
        arguments: Any = next((function[key] for key in _ARGUMENTS if key in function), {})
        if self._name is not None and not self._can_pass_arguments:
            self._set_arguments(as_arguments(json.dumps(arguments, ensure_ascii=False)))


JsonCall = NamedCall | ObjectCall


def as_arguments(value: str) -> str:
    """Return arguments for JSON that is no object: `{}` for null and "", the object in a string,
    else unchanged."""
    if value == "null":
        return "{}"
    if not value.startswith('"'):
        return value
    arguments = json.loads(value).strip()
    if not arguments:
        return "{}"
    return without_surrogates(repair_json(arguments)) if arguments.startswith("{") else value


def _parse_name(text: str) -> str | None:
    if not text.startswith('"'):  # a number can have more digits than are read
        return None
    name = json.loads(text)
    return without_surrogates(name) if isinstance(name, str) and re.search(r"\S", name) else None


@dataclass(frozen=True, slots=True)
class JsonShape:
    """The form of a block."""

    end: str = ""  # the marker after it, or ""
    starts: tuple[str, ...] = ()  # markers before and after single calls
    closers: tuple[str, ...] = ()
    # a pattern with a group `name` of what each call's arguments follow, if any
    header: regex.Pattern[str] | None = None
    by_name: bool = False  # a call is an object `{"f": {…}}`

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(marker for marker in (self.end, *self.starts, *self.closers) if marker)


@dataclass(slots=True, eq=False)
class JsonBody(BlockBody):
    """Reads a block of calls in JSON. Only calls of `names` count, if given."""

    shape: JsonShape
    names: Collection[str] | None = None
    _text_between: str = field(default="", init=False)  # read since the last call
    _call: JsonCall | None = field(default=None, init=False)  # the call under way
    _text_of_call: list[str] = field(default_factory=list, init=False)  # till it is certain
    _unread: str = field(default="", init=False)  # waits for more text

    def feed(self, text: str) -> list[Part]:
        text, self._unread = self._unread + text, ""
        position = 0
        while position < len(text) and self.text_behind is None:
            if self._call is None:
                chars_read = self._read_between_calls(text, position)
            else:
                chars_read = self._read_in_call(self._call, text, position)
            if chars_read is None:
                self._unread = text[position:]
                break
            position += chars_read
        if self.text_behind is not None:
            self.text_behind += text[position:]
        return self._pop_parts()

    def finish(self) -> list[Part]:
        """Return the last parts. A cut end marker is dropped."""
        unread, self._unread = self._unread, ""
        is_cut_marker = not unread or marker_at(unread, 0, self.shape.markers) is not None
        if self._call is not None:
            self._cut_call(self._call, unread)
        elif not (self._has_call and is_cut_marker):
            self._parts.append(Text(self._marker_if_no_call() + self._text_between + unread))
        self.text_behind = ""
        return self._pop_parts()

    def _marker_if_no_call(self) -> str:
        return "" if self._has_call else self.start_marker

    # The steps of `feed` return how many characters they read, None when they must see more.

    def _read_between_calls(self, text: str, position: int) -> int | None:
        char, marker = text[position], marker_at(text, position, self.shape.markers)
        if marker == "":
            return None
        if marker is not None:
            return self._skip_marker(marker)
        if char == "{":
            call = ObjectCall(self.numbering, self.names, by_name=self.shape.by_name)
            return self._begin_call(call, "")
        if char not in _CHARS_BETWEEN:
            return self._read_header(text[position : position + _MAX_HEADER_CHARS])
        self._text_between += char
        return 1

    def _skip_marker(self, marker: str) -> int:
        if not self._has_call and marker in (self.shape.end, self.start_marker):
            return self._end_block()
        if marker == self.shape.end:
            self.text_behind = ""
        elif not self._has_call or marker not in self.shape.closers:
            self._text_between += marker
        return len(marker)

    def _read_header(self, text: str) -> int | None:
        header = self.shape.header.match(text, partial=True) if self.shape.header else None
        if header is None:
            return self._end_block()
        if header.partial:
            return None if len(text) < _MAX_HEADER_CHARS else self._end_block()
        return self._begin_call(NamedCall(self.numbering, header["name"]), header[0])

    def _begin_call(self, call: JsonCall, header: str) -> int:
        self._call = call
        self._text_of_call = [self._marker_if_no_call(), self._text_between, header]
        return len(header)

    def _end_block(self) -> int:
        """Give the text between calls back: it may hold markers."""
        if self._has_call:
            self.text_behind = _LIST_END.sub("", self._text_between, count=1)
        else:
            self._parts.append(Text(self.start_marker))
            self.text_behind = self._text_between
        return 0

    def _read_in_call(self, call: JsonCall, text: str, position: int) -> int | None:
        char, markers = text[position], self.shape.markers
        if call.repair.in_string:  # even that ends at a line that begins with a marker
            markers = tuple(f"\n{marker}" for marker in markers) if char == "\n" else ()
        marker = marker_at(text, position, markers)
        if marker == "":
            return None
        if marker is not None:
            self._parts += call.end(cut=False)
            self._leave_call(call)
            return 0
        if not call.started:
            self._text_of_call.append(char)
        self._parts += call.feed(char)
        if call.failed or call.repair.done:
            self._leave_call(call)
        return 1

    def _leave_call(self, call: JsonCall) -> None:
        self._call, self._text_between = None, ""
        if call.failed:
            self._parts.append(Text("".join(self._text_of_call)))
            self.text_behind = ""
        self._has_call = True

    def _cut_call(self, call: JsonCall, unread: str) -> None:
        if call.repair.in_string:
            self._parts += [part for char in unread for part in call.feed(char)]
        self._parts += call.end(cut=True)
        if call.failed:
            self._parts.append(Text("".join(self._text_of_call) + unread))
