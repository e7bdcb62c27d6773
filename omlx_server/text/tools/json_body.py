"""The calls of a block in JSON: `{"name": …}`, lists of them, `name[ARGS]{…}`. Owned by a parser.

Invariants: characters that belong to no call come back, in `Text` or in `rest`; what is read does
not depend on how the text was cut.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from omlx_server.text.parts import Part, Text
from omlx_server.text.tools.json_calls import JsonCall, NamedCall, ObjectCall
from omlx_server.text.tools.markers import at
from omlx_server.text.tools.numbering import Numbering

_MAX_HEADER_CHARS = 256
_BETWEEN = " \t\r\n,;[]}"
_LIST_END = re.compile(r"\s*[\]}]+")


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before a call's arguments. `whole` has a group `name`; `begun` matches each
    beginning of what `whole` matches."""

    whole: re.Pattern[str]
    begun: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class JsonShape:
    """`end`: the marker after a block, or "". `separators`: markers around single calls."""

    end: str = ""
    separators: tuple[str, ...] = ()
    header: Header | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(marker for marker in (self.end, *self.separators) if marker)


class JsonBody:
    """Reads after the start marker `lead`. `rest`, once set, is text after the block.

    `names`: see ObjectCall.
    """

    def __init__(
        self,
        shape: JsonShape,
        numbering: Numbering,
        lead: str,
        names: Collection[str] | None = None,
    ) -> None:
        self._shape = shape
        self._numbering = numbering
        self._lead = lead
        self._names = names
        self._gap = ""  # read since the last call
        self._header = ""  # the end of the gap, from where it may be a header
        self._call: JsonCall | None = None
        self._raw: list[str] = []  # of the call under way, till it is certain
        self._any = False
        self._held = ""
        self._deltas: list[Part] = []
        self.rest: str | None = None

    def feed(self, text: str) -> list[Part]:
        text, self._held = self._held + text, ""
        position = 0
        while position < len(text) and self.rest is None:
            step = self._between if self._call is None else self._within
            taken = step(text, position)
            if taken is None:
                self._held = text[position:]
                break
            position += taken
        if self.rest is not None:
            self.rest += text[position:]
        return self._taken()

    def finish(self) -> list[Part]:
        """The answer ends within the block. A marker that was cut off is dropped with its call."""
        held, self._held = self._held, ""
        if self._call is not None:
            self._cut(self._call, held)
        elif self._header or not self._any:
            self._deltas.append(Text(self._lead_if_first() + self._gap + held))
        self.rest = ""
        return self._taken()

    def _taken(self) -> list[Part]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _lead_if_first(self) -> str:
        return "" if self._any else self._lead

    # Each step gives the number of characters that it read, None when it must see more.

    def _between(self, text: str, position: int) -> int | None:
        """Before, between or after calls."""
        char = text[position]
        marker = None if self._header else at(text, position, self._shape.markers)
        if marker == "":
            return None
        if marker is not None:
            return self._pass(marker)
        if char == "{":
            return self._begin()
        if self._extends_header(char):
            self._header += char
        elif self._header or char not in _BETWEEN:
            return self._leave()
        self._gap += char
        return 1

    def _pass(self, marker: str) -> int:
        if not self._any and marker in (self._shape.end, self._lead):
            return self._leave()
        if marker == self._shape.end:
            self.rest = ""
        else:
            self._gap += marker
        return len(marker)

    def _extends_header(self, char: str) -> bool:
        header, known = self._shape.header, self._header + char
        if header is None or len(known) > _MAX_HEADER_CHARS:
            return False
        return header.begun.fullmatch(known) is not None

    def _leave(self) -> int:
        """No call comes. The gap goes back to the outside: there may be markers in it."""
        if self._any:
            self.rest = _LIST_END.sub("", self._gap, count=1)
        else:
            self._deltas.append(Text(self._lead))
            self.rest = self._gap
        return 0

    def _begin(self) -> int:
        header = self._shape.header
        if header is None or not self._header:
            self._call = ObjectCall(self._numbering, self._names)
        elif told := header.whole.fullmatch(self._header):
            self._call = NamedCall(self._numbering, told["name"])
        else:
            return self._leave()
        self._raw = [self._lead_if_first(), self._gap]
        return 0

    def _within(self, text: str, position: int) -> int | None:
        """In a call. A line that begins with a marker ends even an open string."""
        call, char = self._open_call, text[position]
        markers = self._shape.markers
        if call.in_string:
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
        if call.failed or call.done:
            self._after(call)
        return 1

    @property
    def _open_call(self) -> JsonCall:
        assert self._call is not None
        return self._call

    def _after(self, call: JsonCall) -> None:
        self._call, self._gap, self._header = None, "", ""
        if call.failed:
            self._deltas.append(Text("".join(self._raw)))
            self.rest = ""
        self._any = True

    def _cut(self, call: JsonCall, held: str) -> None:
        if call.in_string:
            self._deltas += [delta for char in held for delta in call.feed(char)]
        self._deltas += call.end(cut=True)
        if call.failed:
            self._deltas.append(Text("".join(self._raw) + held))
