"""Reads the calls of a block in XML-like or Python-like markup by mlx-lm's parsers. Owned by a
parser.

The arguments come parameter by parameter: where one ends, the text so far is parsed, closed as if
the call ended there, and what is new is given. A family without such an end gives each call whole.
Invariants: as for `JsonBody`; a marker within a parameter's value is part of the value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omlx_server.text.encoding.utf8 import whole
from omlx_server.text.markers import earliest, held_length
from omlx_server.text.parts import Arguments, CallStart, Part, Text
from omlx_server.text.tool_calls.block_body import BlockBody
from omlx_server.text.tool_calls.numbering import Numbering
from omlx_server.text.tool_calls.plain_json import dumped

# Parameters beyond so many come with the call's end: each costs a parse of the whole call.
_MAX_STEPS = 64

Verdict = bool | None


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call that a parser found. `arguments`: the value of each parameter as JSON text."""

    name: str
    arguments: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MarkupShape:
    """The form of a block. `opens`: whether a text may be the beginning of one; None while it is
    too short to say. `parse` gives the calls of a text, none when it holds none; it never raises.
    `item`: markers around a parameter, or None. `call_end`: the marker after each call, or ""."""

    end: str
    start: str
    opens: Callable[[str], Verdict]
    parse: Callable[[str, Sequence[Mapping[str, Any]]], list[ParsedCall]]
    item: tuple[str, str] | None = None
    call_end: str = ""


@dataclass(slots=True, eq=False)
class MarkupBody(BlockBody):
    """Reads a block of calls in markup. `tools` are those of the request: their schemas say of
    which type a value is."""

    shape: MarkupShape
    tools: Sequence[Mapping[str, Any]]
    _opened: bool = field(default=False, init=False)
    _text: str = field(default="", init=False)  # of the call under way
    _scanned: int = field(default=0, init=False)
    _in_item: bool = field(default=False, init=False)
    _steps: int = field(default=0, init=False)
    _call: "_GrowingCall" = field(init=False)

    def __post_init__(self) -> None:
        self._call = _GrowingCall(self.numbering)

    def feed(self, text: str) -> list[Part]:
        self._text += text
        if self._opened or self._opens():
            while self.rest is None and (found := self._next_marker()):
                self._at_marker(*found)
        return self._taken()

    def finish(self) -> list[Part]:
        """Return the last parts: the answer ends within the block. Its end marker can be missing
        because it was what ended the answer."""
        if not self._call.started and (self._in_item or not self._opened):
            self._deltas.append(Text(self.lead + self._text))
        else:
            self._end_of_text(self._text, known_names_only=True)
        self.rest = ""
        return self._taken()

    def _opens(self) -> bool:
        verdict = self.shape.opens(self._text.lstrip())
        self._opened = verdict is True
        if verdict is False:
            self._deltas.append(Text(self.lead))
            self.rest = self._text
        return self._opened

    def _next_marker(self) -> tuple[int, str] | None:
        """The next marker that counts here. Moves `_scanned` behind what can't be one."""
        shape = self.shape
        if self._in_item and shape.item:
            markers: tuple[str, ...] = (shape.item[1],)
        else:
            markers = (shape.end, shape.start, shape.call_end, *(shape.item or ()))
            markers = tuple(marker for marker in markers if marker)
        found = earliest(self._text, markers, self._scanned)
        if found is None:
            self._scanned = max(self._scanned, len(self._text) - held_length(self._text, markers))
        return found

    def _at_marker(self, position: int, marker: str) -> None:
        shape, after = self.shape, position + len(marker)
        item_start, item_end = shape.item or ("", "")
        self._scanned = after
        if marker == shape.end:
            self._end_block(position, after)
        elif marker == shape.start:
            self._end_block(position, position)
        elif marker == shape.call_end:
            self._end_call(self._text[:after])
            self._next_call(self._text[after:])
        elif marker == item_start:
            self._in_item = True
        elif marker == item_end:
            self._in_item = False
            self._step(self._text[:after])

    def _step(self, text: str) -> None:
        """A parameter is complete."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            return
        calls = self._parsed(text + self.shape.call_end)
        if len(calls) == 1:
            self._deltas += self._call.grown(calls[0])

    def _end_call(self, text: str) -> None:
        calls = self._parsed(text)
        if not calls and not self._call.started:
            self._deltas.append(Text(self.lead + text))
        self._deltas += self._call.ended(calls)
        self.lead = ""

    def _next_call(self, text: str) -> None:
        self._text, self._scanned, self._in_item, self._steps = text, 0, False, 0
        self._any = self._any or self._call.started
        self._call = _GrowingCall(self.numbering)

    def _end_block(self, position: int, after: int) -> None:
        told, self.rest = self._text[:position], self._text[after:]
        marker = self._text[position:after]
        if not self._end_of_text(told):
            self._deltas.append(Text(marker))

    def _end_of_text(self, text: str, known_names_only: bool = False) -> bool:
        """The last call, if any. False when it came back as text."""
        if not text.strip() and self._any:
            return True
        calls = self._parsed(text) or self._parsed(text + self.shape.call_end)
        if known_names_only:
            names = {tool["function"]["name"] for tool in self.tools}
            calls = [call for call in calls if call.arguments or call.name in names]
        if not calls and not self._call.started:
            self._deltas.append(Text(self.lead + text))
            return False
        self._deltas += self._call.ended(calls)
        return True

    def _parsed(self, text: str) -> list[ParsedCall]:
        """With the tools' types; without, when a value is not of its type."""
        body = text.strip()
        return self.shape.parse(body, self.tools) or self.shape.parse(body, ())


class _GrowingCall:
    """Tells a call in fragments. A parameter that was told does not change any more."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._start: CallStart | None = None
        self._told: set[str] = set()

    @property
    def started(self) -> bool:
        return self._start is not None

    def grown(self, call: ParsedCall) -> list[Part]:
        """What `call` has more than was told: the name, parameters."""
        deltas: list[Part] = []
        if self._start is None:
            self._start = self._numbering.start(whole(call.name))
            deltas += [self._start, Arguments(self._start.index, "{")]
        for key, value in call.arguments.items():
            if key not in self._told:
                comma = ", " if self._told else ""
                pair = f"{comma}{dumped(key)}: {value}"
                deltas.append(Arguments(self._start.index, pair))
                self._told.add(key)
        return deltas

    def ended(self, calls: list[ParsedCall]) -> list[Part]:
        """The text of the call is complete and gave `calls`; the first is the one under way."""
        deltas: list[Part] = []
        if calls:
            deltas += self.grown(calls[0])
        if self._start is not None:
            deltas.append(Arguments(self._start.index, "}"))
        for call in calls[1:]:
            deltas += _GrowingCall(self._numbering).ended([call])
        return deltas
