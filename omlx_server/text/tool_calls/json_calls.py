"""Reads one call in JSON, character by character. No part comes before the text is certainly a
call; the fragments of its arguments, joined, are valid JSON."""

import json
import re
from collections.abc import Collection
from typing import Any

from omlx_server.text.encoding.utf8 import without_surrogates
from omlx_server.text.parts import Arguments, CallStart, Part
from omlx_server.text.tool_calls.json_repair import Fragment, JsonRepair, repair_json
from omlx_server.text.tool_calls.numbering import Numbering

_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "tool_name")
_PLAIN_MEMBERS = (*_NAMES, "type", "id", "tool_call_id", *_ARGUMENTS)


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
