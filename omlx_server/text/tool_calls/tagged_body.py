"""Reads the calls of a block in tags: `<function=f><parameter=city>Rome</parameter></function>`.

A value ends only where another parameter or the end of the call follows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import regex

from omlx_server.text.encoding.utf8 import whole
from omlx_server.text.markers import held_length
from omlx_server.text.parts import Arguments, CallStart, Part, Text
from omlx_server.text.tool_calls.call_block import BlockBody
from omlx_server.text.tool_calls.nested_tags import nested
from omlx_server.text.tool_calls.plain_json import dumped
from omlx_server.text.tool_calls.values import schema_of, tool_names, typed

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
    _name: str | None = field(default=None, init=False)  # of the call under way
    _start: CallStart | None = field(default=None, init=False)  # comes with its first parameter
    _told: set[str] = field(default_factory=set, init=False)  # parameters of the call
    _key: str | None = field(default=None, init=False)  # of the value under way
    _value_end: str = field(default="", init=False)
    _is_text: bool | None = field(default=None, init=False)

    def feed(self, text: str) -> list[Part]:
        self._text += text
        while self.rest is None:
            taken = self._step()
            if taken is None:
                break
            untold = self._name is not None and self._start is None
            self._raw = self._raw + self._text[:taken] if untold else ""
            self._text = self._text[taken:]
        return self._taken()

    def finish(self) -> list[Part]:
        """Return the last parts. End markers may be missing because they ended the answer."""
        if self._key is not None:
            self._finish_value()
        name = self._name
        whole_call = self._key is None and name in tool_names(self.tools)
        if name is not None and (self._start is not None or whole_call):
            self._end_call()
            self._text = ""
        if name is None and self._any and _is_begun(self._text, self.shape.markers):
            self._text = ""
        self._leave(self._text)
        self._deltas.append(Text(self.rest or ""))
        self.rest = ""
        return self._taken()

    # Each step gives the number of characters that it read, None when it must see more.

    def _step(self) -> int | None:
        if self._key is not None:
            return self._value(self._key)
        return self._between() if self._name is None else self._parameters()

    def _between(self) -> int | None:
        shape = self.shape
        bare = self._text.lstrip()
        space = len(self._text) - len(bare)
        if self._any and shape.end and bare.startswith(shape.end):
            self._leave(bare[len(shape.end) :])
            return 0
        header = shape.call.match(bare[:_MAX_HEADER_CHARS], partial=True)
        if header is not None and not header.partial:
            return self._begin(header["name"], space + len(header[0]))
        waits = header is not None and len(bare) < _MAX_HEADER_CHARS
        if waits or (self._any and _is_begun(bare, (shape.end,))):
            return None
        self._leave(self._text)
        return 0

    def _begin(self, name: str, taken: int) -> int:
        if self.names is not None and name not in self.names:
            self._leave(self._text)
            return 0
        self._name, self._start, self._told = name, None, set()
        return taken

    def _parameters(self) -> int | None:
        bare = self._text.lstrip()
        space, ahead = len(self._text) - len(bare), self._ahead(bare[:_MAX_HEADER_CHARS])
        if ahead == "":
            return None
        if isinstance(ahead, regex.Match):
            self._key, self._scanned = ahead["key"], 0
            self._value_end = self.shape.value_end.replace("{key}", ahead["key"])
            kind = ahead.groupdict().get("kind")
            self._is_text = None if kind is None else kind in ("string", "true")
            return space + len(ahead[0])
        if ahead is None and self._start is None:
            self._leave(self._text)
            return 0
        self._end_call()
        return space + len(ahead) if ahead and ahead == self.shape.call_end else 0

    def _ahead(self, text: str) -> "regex.Match[str] | str | None":
        """Return what goes on behind a value: a parameter's header or an end marker; "" while
        the text is too short to say, None for neither."""
        bare, ends = text.lstrip(), [*filter(None, (self.shape.call_end, self.shape.end))]
        for end in ends:
            if bare.startswith(end):
                return end
        header = self.shape.key.match(bare, partial=True)
        if header is not None and not header.partial:
            return header
        waits = header is not None or _is_begun(bare, ends)
        return "" if waits and len(text) < _MAX_HEADER_CHARS else None

    def _value(self, key: str) -> int | None:
        marker = self._value_end
        if self._text.lstrip().startswith(_CDATA_BEGIN):
            self._scanned = max(self._scanned, self._text.find(_CDATA_END))
            if _CDATA_END not in self._text:
                return None
        while (end := self._text.find(marker, self._scanned)) >= 0:
            behind = end + len(marker)
            ahead = self._ahead(self._text[behind : behind + _MAX_HEADER_CHARS])
            if ahead == "":
                self._scanned = end
                return None
            if ahead is not None:
                self._tell(key, self._text[:end])
                return behind
            self._scanned = end + 1
        held = held_length(self._text, (marker,))
        self._scanned = max(self._scanned, len(self._text) - held)
        return None

    def _finish_value(self) -> None:
        shape, text, key = self.shape, self._text, self._key or ""
        value, marker, after = text.rpartition(self._value_end)
        if not marker or self._ahead(after) is None:
            ends = [text.rfind(end) for end in (shape.call_end, shape.end) if end]
            place = min((end for end in ends if end >= 0), default=-1)
            if place < 0:
                return
            value = text[:place]
        self._tell(key, value)
        self._text = ""

    def _tell(self, key: str, text: str) -> None:
        if self.shape.newlines:
            text = text.removeprefix("\n").removesuffix("\n")
        if quoted := _CDATA.fullmatch(text):
            text = quoted[1]
        index, name = self._begun_call(), whole(key)
        if name not in self._told:
            comma = ", " if self._told else ""
            member = f"{comma}{dumped(name)}: {self._json_of(key, text)}"
            self._deltas.append(Arguments(index, member))
            self._told.add(name)
        self._key = None

    def _json_of(self, key: str, text: str) -> str:
        if self._is_text is not None:
            return dumped(text) if self._is_text else typed(text, frozenset())
        schema = schema_of(self.tools, self._name or "").of_member(key)
        mark = self.shape.mark
        return nested(text, mark, schema) if mark else typed(text, schema.kinds)

    def _begun_call(self) -> int:
        if self._start is None:
            self._start = self.numbering.start(whole(self._name or ""))
            self._deltas += [self._start, Arguments(self._start.index, "{")]
        return self._start.index

    def _end_call(self) -> None:
        self._deltas.append(Arguments(self._begun_call(), "}"))
        self._name, self._key, self._any, self._raw, self.lead = None, None, True, "", ""

    def _leave(self, rest: str) -> None:
        """Give back what is no call, with the marker that the rest must not begin with again."""
        marker = self.begun if not self._any and not self._raw else ""
        self._deltas.append(Text(self.lead + self._raw + marker))
        self._raw, self.rest = "", rest.removeprefix(marker)


def _is_begun(text: str, markers: Sequence[str]) -> bool:
    return any(marker.startswith(text) for marker in markers if marker)
