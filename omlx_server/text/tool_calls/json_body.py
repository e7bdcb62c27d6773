"""Reads the calls of a block in JSON: `{"name": …}`, lists of them, `name[ARGS]{…}`."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

import regex

from omlx_server.text.markers import marker_at
from omlx_server.text.parts import Part, Text
from omlx_server.text.tool_calls.call_block import BlockBody
from omlx_server.text.tool_calls.json_calls import JsonCall, NamedCall, ObjectCall

_MAX_HEADER_CHARS = 256
_CHARS_BETWEEN = " \t\r\n,;[]}`"
# What may close a list, or the fence around it, behind the last call.
_LIST_END = re.compile(r"\s*[\]}]+|\s*`{1,3}")


@dataclass(frozen=True, slots=True)
class JsonShape:
    """The form of a block.

    end              the marker after it, or ""
    starts, closers  markers before and after single calls
    header           a pattern with a group `name` of what each call's arguments follow, if any
    by_name          a call is an object `{"f": {…}}`
    """

    end: str = ""
    starts: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    header: regex.Pattern[str] | None = None
    by_name: bool = False

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
