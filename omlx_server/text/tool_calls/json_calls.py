"""Reads one call in JSON, character by character. No delta comes before the text is certainly a
call; the fragments, joined, are valid JSON."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from omlx_server.text.encoding.utf8 import whole
from omlx_server.text.parts import Arguments, CallStart, Part
from omlx_server.text.tool_calls.json_repair import Fragment, JsonRepair, repaired
from omlx_server.text.tool_calls.numbering import Numbering

_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "tool_name")
_PLAIN_MEMBERS = (*_NAMES, "type", "id", "tool_call_id", *_ARGUMENTS)


class JsonCall(ABC):
    """`failed`: the text is no call. `started`: it certainly is one."""

    def __init__(self) -> None:
        self.repair = JsonRepair()
        self._start: CallStart | None = None
        self.failed = False

    @property
    def started(self) -> bool:
        return self._start is not None

    @abstractmethod
    def feed(self, char: str) -> list[Part]: ...
    @abstractmethod
    def end(self, cut: bool) -> list[Part]: ...


class NamedCall(JsonCall):
    """The arguments of a call after a header with its name."""

    def __init__(self, numbering: Numbering, name: str) -> None:
        super().__init__()
        self._start = start = numbering.start(whole(name))
        self._index = start.index
        self._untold: list[Part] = [start]

    def feed(self, char: str) -> list[Part]:
        return self._deltas(self.repair.feed(char))

    def end(self, cut: bool) -> list[Part]:
        return self._deltas(self.repair.close())

    def _deltas(self, fragments: list[Fragment]) -> list[Part]:
        deltas, self._untold = self._untold, []
        return deltas + [Arguments(self._index, f.text) for f in fragments]


class ObjectCall(JsonCall):
    """A call as one object, `{"name": "f", "arguments": {…}}`, keys in any order, or, with
    `by_name`, `{"f": {…}}`. With `names` it needs one of them and no other keys."""

    def __init__(
        self, numbering: Numbering, names: Collection[str] | None = None, *, by_name: bool = False
    ) -> None:
        super().__init__()
        self._numbering = numbering
        self._names = names
        self._by_name = by_name
        self._name_text = ""
        self._name: str | None = None
        self._member: str | None = None  # the one that holds the arguments
        self._arguments = ""  # not told yet: an object is passed on as it comes, others once whole
        self._has_arguments = False
        self._closed = False  # the arguments are whole
        self._others: dict[str, str] = {}

    def feed(self, char: str) -> list[Part]:
        deltas = self._take(self.repair.feed(char))
        return deltas + self._resolved() if self.repair.done else deltas

    def end(self, cut: bool) -> list[Part]:
        """End the object early: at a marker, or with `cut` at the end of the answer."""
        if cut and self._name is None:  # never complete a name
            self.failed = True
            return []
        deltas = self._take(self.repair.close())
        if not cut:
            return deltas + self._resolved()
        self.failed = not self.started
        return deltas

    def _take(self, fragments: list[Fragment]) -> list[Part]:
        for fragment in fragments:
            if fragment.member is not None:
                self._sort(fragment.member, fragment)
        return [] if self.failed else self._given()

    def _sort(self, member: str, fragment: Fragment) -> None:
        known = self._names if self._by_name else _PLAIN_MEMBERS
        if self._names is not None and known is not None and member not in known:
            self.failed = self.failed or not self.started
        if self._by_name:
            self._name = whole(member) if self._name is None else self._name
            self._argue(member, fragment)
        elif member in _NAMES and self._name is None:
            self._name_text += fragment.text
            if fragment.last:
                self._name = _name_in(self._name_text)
                self.failed = self._names is not None and self._name not in self._names
        elif member in _ARGUMENTS:
            self._argue(member, fragment)
        elif not self.started:
            self._others[member] = self._others.get(member, "") + fragment.text

    def _argue(self, member: str, fragment: Fragment) -> None:
        if self._closed or self._member not in (None, member):
            return
        self._member = member
        self._arguments += fragment.text
        self._has_arguments = self._has_arguments or self._arguments.startswith("{")
        if fragment.last and not self._has_arguments:
            self._set(reformed(self._arguments))
        self._closed = fragment.last

    def _set(self, arguments: str) -> None:
        self._arguments, self._has_arguments, self._closed = arguments, True, True

    def _given(self) -> list[Part]:
        if self._name is None or not self._has_arguments:
            return []
        deltas: list[Part] = []
        if self._start is None:
            self._start = self._numbering.start(self._name)
            deltas.append(self._start)
        arguments, self._arguments = self._arguments, ""
        return [*deltas, Arguments(self._start.index, arguments)]

    def _resolved(self) -> list[Part]:
        if self.started or self.failed:
            return []
        strict = self._names is not None
        if self._name is None and not strict:
            self._read_function(self._others.get("function", ""))
        plain = self._others.keys() <= set(_PLAIN_MEMBERS)
        if self._name is not None and not self._has_arguments and plain and not strict:
            self._set("{}")
        self.failed = self._name is None or not self._has_arguments
        return self._given()

    def _read_function(self, text: str) -> None:
        try:
            function: Any = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(function, dict):
            self._name = _name_in(text)
            return
        self._name = _name_in(json.dumps(function.get("name")))
        arguments: Any = next((function[key] for key in _ARGUMENTS if key in function), {})
        if self._name is not None and not self._has_arguments:
            self._set(reformed(json.dumps(arguments, ensure_ascii=False)))


def reformed(value: str) -> str:
    """Return arguments for JSON that is no object: `{}` for null and "", the object in a string,
    else unchanged."""
    if value == "null":
        return "{}"
    if not value.startswith('"'):
        return value
    inner = json.loads(value).strip()
    if not inner:
        return "{}"
    return whole(repaired(inner)) if inner.startswith("{") else value


def _name_in(text: str) -> str | None:
    if not text.startswith('"'):  # a number can have more digits than are read
        return None
    name = json.loads(text)
    return whole(name) if isinstance(name, str) and re.search(r"\S", name) else None
