"""Reads the calls of a block in tags: `<function=f><parameter=city>Rome</parameter></function>`.

A value ends only where another parameter or the end of the call follows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import regex

from omlx_server.text.encoding.searching import begun_marker_length, without_surrogates
from omlx_server.text.parts import Arguments, CallStart, Part, Text
from omlx_server.text.tool_calls.call_block import BlockBody
from omlx_server.text.tool_calls.values import (
    ParameterSchema,
    json_object,
    parameters_of,
    to_json,
    tool_names,
    typed_json,
)

_MAX_DEPTH = 50
_MAX_HEADER_CHARS = 600
_CDATA_BEGIN, _CDATA_END = "<![CDATA[", "]]>"
_CDATA = regex.compile(r"\s*<!\[CDATA\[(.*)\]\]>\s*", regex.DOTALL)


def nested_tags_json(text: str, mark: str, schema: ParameterSchema, depth: int = 0) -> str:
    """Return the JSON text of a value whose tags have `mark` in front; unmatched tags make it a
    string."""
    members = _split_tags(text.strip(), mark) if depth < _MAX_DEPTH else None
    if members is None:
        return typed_json(text, schema.kinds)
    values = [
        nested_tags_json(content, mark, schema.of_member(key), depth + 1)
        for key, content in members
    ]
    if all(key == "item" for key, _ in members):
        return f"[{', '.join(values)}]"
    return json_object(dict(zip([key for key, _ in members], values, strict=True)))


def _split_tags(text: str, mark: str) -> list[tuple[str, str]] | None:
    """Return the tags by name and content; None for a text that is not all tags."""
    members: list[tuple[str, str]] = []
    while text:
        name, tag_end, after = text.removeprefix(f"{mark}<").partition(">")
        if not text.startswith(f"{mark}<") or not tag_end or name.startswith("/"):
            return None
        end = _matching_end(after, f"{mark}<{name}>", f"{mark}</{name}>")
        if end is None:
            return None
        members.append((name, after[:end]))
        text = after[end:].removeprefix(f"{mark}</{name}>").lstrip()
    return members or None


def _matching_end(text: str, start: str, end: str) -> int | None:
    depth, position = 1, 0
    while depth:
        place = text.find(end, position)
        if place < 0:
            return None
        depth += text.count(start, position, place) - 1
        position = place + len(end)
    return position - len(end)


@dataclass(frozen=True, slots=True)
class TaggedShape:
    """The form of a block."""

    end: str  # the marker after it
    # patterns before the parameters and before a value, with a group `name` or `key`; a group
    # `kind` says whether the value is a string
    call: regex.Pattern[str]
    key: regex.Pattern[str]
    value_end: str  # the marker after a value; "{key}" stands for the parameter's name
    call_end: str = ""  # the marker after a call; without it a call ends with the block
    newlines: bool = False  # a line break on each side of a value is not part of it
    mark: str = ""  # what stands before each tag within a value, if values consist of tags

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.end, self.value_end, self.call_end)


@dataclass(slots=True, eq=False)
class TaggedBody(BlockBody):
    """Reads a block of calls in tags. The schemas of `tools` give values their types. Only calls
    of `names` count, if given. `marker_in_text`: a start marker that is part of the first call."""

    shape: TaggedShape
    tools: Sequence[Mapping[str, Any]]
    names: Collection[str] | None = None
    marker_in_text: str = ""
    _text: str = field(default="", init=False)
    # Of the call under way. With its first parameter or its end it is certain and has a start;
    # until then all that was read of it is doubtful.
    _name: str | None = field(default=None, init=False)
    _doubtful: str = field(default="", init=False)
    _start: CallStart | None = field(default=None, init=False)
    _keys: set[str] = field(default_factory=set, init=False)
    # Of the value under way; `_scanned`: its characters without an end marker that counts.
    _key: str | None = field(default=None, init=False)
    _value_end: str = field(default="", init=False)
    _is_string: bool | None = field(default=None, init=False)
    _scanned: int = field(default=0, init=False)

    def feed(self, text: str) -> list[Part]:
        self._text += text
        while self.text_behind is None:
            chars_read = self._read()
            if chars_read is None:
                break
            is_doubtful = self._name is not None and self._start is None
            self._doubtful = self._doubtful + self._text[:chars_read] if is_doubtful else ""
            self._text = self._text[chars_read:]
        return self._pop_parts()

    def finish(self) -> list[Part]:
        """Return the last parts. End markers may be missing because they ended the answer."""
        if self._key is not None:
            self._finish_value()
        name = self._name
        is_whole_call = self._key is None and name in tool_names(self.tools)
        if name is not None and (self._start is not None or is_whole_call):
            self._end_call()
            self._text = ""
        if name is None and self._has_call and _may_become(self._text, self.shape.markers):
            self._text = ""
        self._end_block(self._text)
        self._parts.append(Text(self.text_behind or ""))
        self.text_behind = ""
        return self._pop_parts()

    # The steps of `feed` return how many characters they read, None when they must see more.

    def _read(self) -> int | None:
        if self._key is not None:
            return self._read_value(self._key)
        return self._read_between_calls() if self._name is None else self._read_in_call()

    def _read_between_calls(self) -> int | None:
        shape = self.shape
        stripped = self._text.lstrip()
        space = len(self._text) - len(stripped)
        if self._has_call and shape.end and stripped.startswith(shape.end):
            self._end_block(stripped[len(shape.end) :])
            return 0
        header = shape.call.match(stripped[:_MAX_HEADER_CHARS], partial=True)
        if header is not None and not header.partial:
            return self._begin_call(header["name"], space + len(header[0]))
        may_be_begun = header is not None and len(stripped) < _MAX_HEADER_CHARS
        if may_be_begun or (self._has_call and _may_become(stripped, (shape.end,))):
            return None
        self._end_block(self._text)
        return 0

    def _begin_call(self, name: str, header_length: int) -> int:
        if self.names is not None and name not in self.names:
            self._end_block(self._text)
            return 0
        self._name, self._start, self._keys = name, None, set()
        return header_length

    def _read_in_call(self) -> int | None:
        stripped = self._text.lstrip()
        space = len(self._text) - len(stripped)
        ahead = self._look_ahead(stripped[:_MAX_HEADER_CHARS])
        if ahead == "":
            return None
        if isinstance(ahead, regex.Match):
            self._key, self._scanned = ahead["key"], 0
            self._value_end = self.shape.value_end.replace("{key}", ahead["key"])
            kind = ahead.groupdict().get("kind")
            self._is_string = None if kind is None else kind in ("string", "true")
            return space + len(ahead[0])
        if ahead is None and self._start is None:
            self._end_block(self._text)
            return 0
        self._end_call()
        # The end of the block is left to `_read_between_calls`.
        return space + len(ahead) if ahead and ahead == self.shape.call_end else 0

    def _look_ahead(self, text: str) -> "regex.Match[str] | str | None":
        """Return a parameter's header or an end marker that `text` begins with; "" while the text
        is too short to say, None for neither."""
        stripped, ends = text.lstrip(), [*filter(None, (self.shape.call_end, self.shape.end))]
        for end in ends:
            if stripped.startswith(end):
                return end
        header = self.shape.key.match(stripped, partial=True)
        if header is not None and not header.partial:
            return header
        may_be_begun = header is not None or _may_become(stripped, ends)
        return "" if may_be_begun and len(text) < _MAX_HEADER_CHARS else None

    def _read_value(self, key: str) -> int | None:
        marker = self._value_end
        if self._text.lstrip().startswith(_CDATA_BEGIN):
            self._scanned = max(self._scanned, self._text.find(_CDATA_END))
            if _CDATA_END not in self._text:
                return None
        while (end := self._text.find(marker, self._scanned)) >= 0:
            behind = end + len(marker)
            ahead = self._look_ahead(self._text[behind : behind + _MAX_HEADER_CHARS])
            if ahead == "":
                self._scanned = end
                return None
            if ahead is not None:
                self._add_parameter(key, self._text[:end])
                return behind
            self._scanned = end + 1
        begun_length = begun_marker_length(self._text, (marker,))
        self._scanned = max(self._scanned, len(self._text) - begun_length)
        return None

    def _finish_value(self) -> None:
        """End the value at the last marker that can end it; without one it stays unread."""
        shape, text, key = self.shape, self._text, self._key or ""
        value, marker, after = text.rpartition(self._value_end)
        if not marker or self._look_ahead(after) is None:
            places = [text.rfind(end) for end in (shape.call_end, shape.end) if end and end in text]
            if not places:
                return
            value = text[: min(places)]
        self._add_parameter(key, value)
        self._text = ""

    def _add_parameter(self, key: str, text: str) -> None:
        if self.shape.newlines:
            text = text.removeprefix("\n").removesuffix("\n")
        if quoted := _CDATA.fullmatch(text):
            text = quoted[1]
        index, name = self._start_call(), without_surrogates(key)
        if name not in self._keys:
            comma = ", " if self._keys else ""
            member = f"{comma}{to_json(name)}: {self._value_json(key, text)}"
            self._parts.append(Arguments(index, member))
            self._keys.add(name)
        self._key = None

    def _value_json(self, key: str, text: str) -> str:
        if self._is_string is not None:
            return to_json(text) if self._is_string else typed_json(text, frozenset())
        schema = parameters_of(self.tools, self._name or "").of_member(key)
        mark = self.shape.mark
        return nested_tags_json(text, mark, schema) if mark else typed_json(text, schema.kinds)

    def _start_call(self) -> int:
        if self._start is None:
            self._start = self.numbering.start(without_surrogates(self._name or ""))
            self._parts += [self._start, Arguments(self._start.index, "{")]
        return self._start.index

    def _end_call(self) -> None:
        self._parts.append(Arguments(self._start_call(), "}"))
        self._name, self._key, self._has_call = None, None, True
        self._doubtful = self.start_marker = ""

    def _end_block(self, text_behind: str) -> None:
        # Read again, this marker would begin a block again.
        marker = self.marker_in_text if not self._has_call and not self._doubtful else ""
        self._parts.append(Text(self.start_marker + self._doubtful + marker))
        self._doubtful, self.text_behind = "", text_behind.removeprefix(marker)


def _may_become(text: str, markers: Sequence[str]) -> bool:
    return any(marker.startswith(text) for marker in markers if marker)
