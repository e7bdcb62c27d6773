"""Reads a whole block of calls whose arguments are literals."""

from dataclasses import dataclass, field

from omlx_server.text.markers import begun_marker_length
from omlx_server.text.parts import Arguments, Part, Text
from omlx_server.text.tool_calls.call_block import BlockBody
from omlx_server.text.tool_calls.literal_calls import Parse

_MOST_TRIES = 64
_MAX_CHARS = 2_000_000


@dataclass(frozen=True, slots=True)
class LiteralShape:
    """The form of a block. `end`: the marker after it. `opening`: how it begins. `quote`: the
    marker around strings, if it may be a control token."""

    end: str
    opening: str
    parse: Parse
    quote: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.end, self.quote)


@dataclass(slots=True, eq=False)
class LiteralBody(BlockBody):
    """Parses the whole block at its end marker; at a later one where that was within a string."""

    shape: LiteralShape
    _text: str = field(default="", init=False)
    _has_opening: bool = field(default=False, init=False)
    _scanned: int = field(default=0, init=False)  # characters without an untried end marker
    _tries: int = field(default=0, init=False)

    def feed(self, text: str) -> list[Part]:
        self._text += text
        if not self._has_opening:
            stripped, opening = self._text.lstrip(), self.shape.opening
            self._has_opening = stripped.startswith(opening)
            if not opening.startswith(stripped[: len(opening)]):
                self._end_without_calls()
        may_hold_calls = self._has_opening
        while may_hold_calls and self.text_behind is None:
            may_hold_calls = self._try_at_next_end()
        return self._pop_parts()

    def finish(self) -> list[Part]:
        """Return the last parts. The end marker may be missing because it ended the answer."""
        if not self._add_calls(self._text):
            self._parts.append(Text(self.start_marker + self._text))
        self.text_behind = ""
        return self._pop_parts()

    def _try_at_next_end(self) -> bool:
        """Parse up to the next end marker. Return whether there was one."""
        end = self.shape.end
        place = self._text.find(end, self._scanned)
        if place < 0:
            begun_length = begun_marker_length(self._text, (end,))
            self._scanned = max(self._scanned, len(self._text) - begun_length)
            return False
        self._scanned = place + len(end)
        if self._add_calls(self._text[:place]):
            self.text_behind = self._text[self._scanned :]
        elif self._tries >= _MOST_TRIES:
            self._end_without_calls()
        return True

    def _add_calls(self, text: str) -> bool:
        """Return whether `text` is nothing but calls."""
        self._tries += 1
        calls = self.shape.parse(text) if len(text) < _MAX_CHARS else ()
        for name, arguments in calls:
            start = self.numbering.start(name)
            self._parts += [start, Arguments(start.index, arguments)]
        self._has_call = self._has_call or bool(calls)
        return bool(calls)

    def _end_without_calls(self) -> None:
        self._parts.append(Text(self.start_marker))
        self.text_behind = self._text
