"""Reads the calls of a block in tags: `<function=f><parameter=city>Rome</parameter></function>`.

A value ends only where another parameter or the end of the call follows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import regex

from omlx_server.text.markers import held_length
from omlx_server.text.parts import Part, Text
from omlx_server.text.tool_calls.call_block import BlockBody, GrowingCall
from omlx_server.text.tool_calls.nested_tags import nested
from omlx_server.text.tool_calls.plain_json import dumped
from omlx_server.text.tool_calls.values import ParameterSchema, schema_of, tool_names, typed

_MAX_HEADER_CHARS = 600
_CDATA_BEGIN, _CDATA_END = "<![CDATA[", "]]>"
_CDATA = regex.compile(r"\s*<!\[CDATA\[(.*)\]\]>\s*", regex.DOTALL)


@dataclass(frozen=True, slots=True)
class TaggedShape:
    """The form of a block.

    end        the marker after it
    call, key  patterns before the parameters and before a value, with a group `name` or `key`;
               a group `kind` says whether the value is a string
    value_end  the marker after a value; "{key}" stands for the parameter's name
    call_end   the marker after a call; without it a call ends with the block
    newlines   a line break on each side of a value is not part of it
    mark       what stands before each tag within a value, if values consist of tags
    """

    end: str
    call: regex.Pattern[str]
    key: regex.Pattern[str]
    value_end: str
    call_end: str = ""
    newlines: bool = False
    mark: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.end, self.value_end, self.call_end)


@dataclass(slots=True, eq=False)
class TaggedBody(BlockBody):
    """The schemas of `tools` give values their types. Only calls of `names` count, if given.
    `begun`: how the text begins, for a marker that is part of the first call."""

    shape: TaggedShape
    tools: Sequence[Mapping[str, Any]]
    names: Collection[str] | None = None
    begun: str = ""
    _text: str = field(default="", init=False)
    _raw: str = field(default="", init=False)  # what was read of a call that is not yet certain
    _scanned: int = field(default=0, init=False)
    _call: GrowingCall | None = field(default=None, init=False)
    # Of the call's parameters.
    _schema: ParameterSchema = field(default=ParameterSchema(None, None), init=False)
    _key: str | None = field(default=None, init=False)  # of the value under way
    _value_end: str = field(default="", init=False)
    _is_text: bool | None = field(default=None, init=False)

    def feed(self, text: str) -> list[Part]:
        self._text += text
        while self.rest is None:
            taken = self._step()
            if taken is None:
                break
            untold = self._call is not None and not self._call.started
            self._raw = self._raw + self._text[:taken] if untold else ""
            self._text = self._text[taken:]
        return self._taken()

    def finish(self) -> list[Part]:
        """Return the last parts. End markers may be missing because they ended the answer."""
        if self._key is not None:
            self._finish_value()
        call = self._call
        if call is not None and (call.started or self._is_whole()):
            self._end_call()
            self._text = ""
        if call is None and self._any and self._is_begun(self._text, self.shape.markers):
            self._text = ""
        self._leave(self._text)
        self._deltas.append(Text(self.rest or ""))
        self.rest = ""
        return self._taken()

    # Each step gives the number of characters that it read, None when it must see more.

    def _step(self) -> int | None:
        if self._key is not None:
            return self._value(self._key)
        return self._between() if self._call is None else self._parameters(self._call)

    def _between(self) -> int | None:
        shape = self.shape
        bare = self._text.lstrip()
        space = len(self._text) - len(bare)
        if self._any and shape.end and bare.startswith(shape.end):
            self._leave(bare[len(shape.end) :])
            return 0
        header = shape.call.match(bare, partial=True)
        if header is not None and not header.partial:
            return self._begin(header["name"], space + len(header[0]))
        waits = header is not None and len(bare) < _MAX_HEADER_CHARS
        if waits or (self._any and self._is_begun(bare, (shape.end,))):
            return None
        self._leave(self._text)
        return 0

    def _begin(self, name: str, taken: int) -> int:
        if self.names is not None and name not in self.names:
            self._leave(self._text)
            return 0
        self._call = GrowingCall(self.numbering, name)
        self._schema = schema_of(self.tools, name)
        return taken

    def _parameters(self, call: GrowingCall) -> int | None:
        shape, bare = self.shape, self._text.lstrip()
        space = len(self._text) - len(bare)
        if shape.call_end and bare.startswith(shape.call_end):
            self._end_call()
            return space + len(shape.call_end)
        if shape.end and bare.startswith(shape.end):
            self._end_call()
            return 0
        header = shape.key.match(bare, partial=True)
        if header is not None and not header.partial:
            self._key, self._scanned = header["key"], 0
            self._value_end = shape.value_end.replace("{key}", header["key"])
            kind = header.groupdict().get("kind")
            self._is_text = None if kind is None else kind in ("string", "true")
            return space + len(header[0])
        ends = (shape.call_end, shape.end)
        if (header is not None and len(bare) < _MAX_HEADER_CHARS) or self._is_begun(bare, ends):
            return None
        if call.started:
            self._end_call()
        else:
            self._leave(self._text)
        return 0

    def _value(self, key: str) -> int | None:
        marker = self._value_end
        if self._text.lstrip().startswith(_CDATA_BEGIN):
            self._scanned = max(self._scanned, self._text.find(_CDATA_END))
            if _CDATA_END not in self._text:
                return None
        while (end := self._text.find(marker, self._scanned)) >= 0:
            behind = end + len(marker)
            follows = self._follows(self._text[behind : behind + _MAX_HEADER_CHARS])
            if follows is None:
                self._scanned = end
                return None
            if follows:
                self._tell(key, self._text[:end])
                return behind
            self._scanned = end + 1
        held = held_length(self._text, (marker,))
        self._scanned = max(self._scanned, len(self._text) - held)
        return None

    def _follows(self, text: str) -> bool | None:
        """Return whether a text goes on as behind a value; None while it is too short to say."""
        shape, bare = self.shape, text.lstrip()
        if not bare:
            return None if len(text) < _MAX_HEADER_CHARS else False
        ends = tuple(filter(None, (shape.call_end, shape.end)))
        if bare.startswith(ends):
            return True
        header = shape.key.match(bare, partial=True)
        if header is not None and not header.partial:
            return True
        return None if header is not None or self._is_begun(bare, ends) else False

    def _finish_value(self) -> None:
        shape, text, key = self.shape, self._text, self._key or ""
        value, marker, after = text.rpartition(self._value_end)
        if not marker or self._follows(after) is False:
            ends = [text.rfind(end) for end in (shape.call_end, shape.end) if end]
            place = min((end for end in ends if end >= 0), default=-1)
            if place < 0:
                return
            value = text[:place]
        self._tell(key, value)
        self._text = ""

    def _tell(self, key: str, text: str) -> None:
        assert self._call is not None
        if self.shape.newlines:
            text = text.removeprefix("\n").removesuffix("\n")
        if quoted := _CDATA.fullmatch(text):
            text = quoted[1]
        self._deltas += self._call.add(key, self._json_of(key, text))
        self._key = None

    def _json_of(self, key: str, text: str) -> str:
        if self._is_text is not None:
            return dumped(text) if self._is_text else typed(text, frozenset())
        schema = self._schema.of_member(key)
        mark = self.shape.mark
        return nested(text, mark, schema) if mark else typed(text, schema.kinds)

    def _is_whole(self) -> bool:
        assert self._call is not None
        return self._key is None and self._call.name in tool_names(self.tools)

    def _end_call(self) -> None:
        assert self._call is not None
        self._deltas += self._call.end()
        self._call, self._key, self._any, self._raw, self.lead = None, None, True, "", ""

    def _leave(self, rest: str) -> None:
        """Give back what is no call, with the marker that the rest must not begin with again."""
        marker = self.begun if not self._any and not self._raw else ""
        self._deltas.append(Text(self.lead + self._raw + marker))
        self._raw, self.rest = "", rest.removeprefix(marker)

    def _is_begun(self, text: str, markers: Sequence[str]) -> bool:
        return any(marker.startswith(text) for marker in markers if marker)
