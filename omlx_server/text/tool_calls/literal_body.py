"""Reads a whole block of calls whose arguments are literals. Invariants: as for `JsonBody`."""

from dataclasses import dataclass, field

from omlx_server.text.markers import held_length
from omlx_server.text.parts import Arguments, Part, Text
from omlx_server.text.tool_calls.call_block import BlockBody
from omlx_server.text.tool_calls.literal_calls import Parse

_MOST_TRIES = 64
_MAX_CHARS = 2_000_000


@dataclass(frozen=True, slots=True)
class LiteralShape:
    """`end`: the marker after the block. `opening`: a pattern of its beginning. `quote`: the
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
    shape: LiteralShape
    _text: str = field(default="", init=False)
    _opened: bool = field(default=False, init=False)
    _scanned: int = field(default=0, init=False)
    _tries: int = field(default=0, init=False)

    def feed(self, text: str) -> list[Part]:
        self._text += text
        if not self._opened:
            bare, opening = self._text.lstrip(), self.shape.opening
            self._opened = bare.startswith(opening)
            if not opening.startswith(bare[: len(opening)]):
                self._leave(self._text)
        while self._opened and self.rest is None and self._at_end():
            pass
        return self._taken()

    def finish(self) -> list[Part]:
        """Return the last parts. The end marker may be missing because it ended the answer."""
        if not self._tell(self._text):
            self._deltas.append(Text(self.lead + self._text))
        self.rest = ""
        return self._taken()

    def _at_end(self) -> bool:
        end = self.shape.end
        place = self._text.find(end, self._scanned)
        if place < 0:
            held = held_length(self._text, (end,))
            self._scanned = max(self._scanned, len(self._text) - held)
            return False
        self._scanned = place + len(end)
        if self._tell(self._text[:place]):
            self.rest = self._text[self._scanned :]
        elif self._tries >= _MOST_TRIES:
            self._leave(self._text)
        return True

    def _tell(self, text: str) -> bool:
        self._tries += 1
        calls = self.shape.parse(text) if len(text) < _MAX_CHARS else ()
        for name, arguments in calls:
            start = self.numbering.start(name)
            self._deltas += [start, Arguments(start.index, arguments)]
        self._any = self._any or bool(calls)
        return bool(calls)

    def _leave(self, rest: str) -> None:
        self._deltas.append(Text(self.lead))
        self.rest = rest
