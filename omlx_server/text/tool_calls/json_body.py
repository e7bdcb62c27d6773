"""Reads the calls of a block in JSON: `{"name": …}`, lists of them, `name[ARGS]{…}`."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

import regex

from omlx_server.text.markers import at
from omlx_server.text.parts import Part, Text
from omlx_server.text.tool_calls.call_block import BlockBody
from omlx_server.text.tool_calls.json_calls import JsonCall, NamedCall, ObjectCall

_MAX_HEADER_CHARS = 256
_BETWEEN = " \t\r\n,;[]}`"
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
    shape: JsonShape
    names: Collection[str] | None = None
    _gap: str = field(default="", init=False)  # read since the last call
    _call: JsonCall | None = field(default=None, init=False)
    # Of the call under way, till it is certain.
    _raw: list[str] = field(default_factory=list, init=False)
    _held: str = field(default="", init=False)

    def feed(self, text: str) -> list[Part]:
        text, self._held = self._held + text, ""
        position = 0
        while position < len(text) and self.rest is None:
            if self._call is None:
                taken = self._between(text, position)
            else:
                taken = self._within(self._call, text, position)
            if taken is None:
                self._held = text[position:]
                break
            position += taken
        if self.rest is not None:
            self.rest += text[position:]
        return self._taken()

    def finish(self) -> list[Part]:
        """Return the last parts. A cut end marker is dropped."""
        remainder, self._held = self._held, ""
        if self._call is not None:
            self._cut(self._call, remainder)
        elif not self._any or (remainder and at(remainder, 0, self.shape.markers) is None):
            self._deltas.append(Text(self._lead_if_first() + self._gap + remainder))
        self.rest = ""
        return self._taken()

    def _lead_if_first(self) -> str:
        return "" if self._any else self.lead

    # Each step gives the number of characters that it read, None when it must see more.

    def _between(self, text: str, position: int) -> int | None:
        char, marker = text[position], at(text, position, self.shape.markers)
        if marker == "":
            return None
        if marker is not None:
            return self._pass(marker)
        if char == "{":
            call = ObjectCall(self.numbering, self.names, by_name=self.shape.by_name)
            return self._begin(call, "")
        if char not in _BETWEEN:
            return self._named(text[position : position + _MAX_HEADER_CHARS])
        self._gap += char
        return 1

    def _pass(self, marker: str) -> int:
        if not self._any and marker in (self.shape.end, self.lead):
            return self._leave()
        if marker == self.shape.end:
            self.rest = ""
        elif not self._any or marker not in self.shape.closers:
            self._gap += marker
        return len(marker)

    def _named(self, text: str) -> int | None:
        header = self.shape.header.match(text, partial=True) if self.shape.header else None
        if header is None:
            return self._leave()
        if header.partial:
            return None if len(text) < _MAX_HEADER_CHARS else self._leave()
        return self._begin(NamedCall(self.numbering, header["name"]), header[0])

    def _begin(self, call: JsonCall, header: str) -> int:
        self._call = call
        self._raw = [self._lead_if_first(), self._gap, header]
        return len(header)

    def _leave(self) -> int:
        """Give the gap back: it may hold markers."""
        if self._any:
            self.rest = _LIST_END.sub("", self._gap, count=1)
        else:
            self._deltas.append(Text(self.lead))
            self.rest = self._gap
        return 0

    def _within(self, call: JsonCall, text: str, position: int) -> int | None:
        """A line that begins with a marker ends even an open string."""
        char, markers = text[position], self.shape.markers
        if call.repair.in_string:
            markers = tuple(f"\n{marker}" for marker in markers) if char == "\n" else ()
        marker = at(text, position, markers)
        if marker == "":
            return None
        if marker is not None:
            self._deltas += call.end(cut=False)
            self._after(call)
            return 0
        if not call.started:
            self._raw.append(char)
        self._deltas += call.feed(char)
        if call.failed or call.repair.done:
            self._after(call)
        return 1

    def _after(self, call: JsonCall) -> None:
        self._call, self._gap = None, ""
        if call.failed:
            self._deltas.append(Text("".join(self._raw)))
            self.rest = ""
        self._any = True

    def _cut(self, call: JsonCall, held: str) -> None:
        if call.repair.in_string:
            self._deltas += [delta for char in held for delta in call.feed(char)]
        self._deltas += call.end(cut=True)
        if call.failed:
            self._deltas.append(Text("".join(self._raw) + held))
