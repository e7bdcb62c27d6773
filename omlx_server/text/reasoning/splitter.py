"""Splits a stream into thoughts and answer. Owned by one choice."""

from collections.abc import Collection, Sequence

from omlx_server.text.parts import Text, Thought
from omlx_server.text.reasoning.harmony import HarmonySplitter
from omlx_server.text.reasoning.style import Opening, Style
from omlx_server.text.tool_calls.numbering import Numbering
from omlx_server.text.tool_calls.stream_parser import StreamParser


class MarkerSplitter(StreamParser):
    """Splits an answer that begins with at most one thought: `<think>…</think>`. `within`: the
    prompt ends in that thought. `calls`: markers of calls; in a thought they are text, unless
    the thought never ends."""

    def __init__(self, style: Style, *, within: bool = False, calls: Sequence[str] = ()) -> None:
        super().__init__(self._thought if within else self._beginning)
        self._style = style
        self._calls = tuple(calls)
        self._doubtful: list[str] = []  # from the first such marker on
        self._fresh = True  # of the thought or of the answer nothing was shown yet

    @property
    def thinking(self) -> bool:
        return self._read in (self._thought, self._doubt)

    def _end(self, held: str, cut: bool) -> None:
        if self._read == self._doubt:
            doubtful = "".join(self._doubtful) + held
            self._parts.append(Thought(doubtful) if cut else Text(doubtful.lstrip()))
        elif self.thinking:  # a thought without an end stays one
            self._think(held.rstrip())
        else:
            self._parts.append(Text(held))

    def _beginning(self, text: str) -> str:
        start, bare = self._style.start, text.lstrip()
        if bare.startswith(start):
            self._read = self._thought
            return bare[len(start) :]
        if bare.startswith(self._style.end):  # of a thought that the model did not open
            self._read = self._thought
            return bare
        if start.startswith(bare) or self._style.end.startswith(bare):
            self._held = text
            return ""
        self._read, self._fresh = self._answer, False
        return text

    def _thought(self, text: str) -> str:
        before, marker, after = self._until(text, (*self._style.ends, *self._calls))
        sure = before.rstrip()
        if not marker:
            self._think(sure)
            self._held = before[len(sure) :] + self._held
            return ""
        if marker in self._calls:
            self._think(sure)
            self._doubtful = [before[len(sure) :], marker]
            self._read = self._doubt
            return after
        self._think(sure)
        self._read, self._fresh = self._gap, True
        return after

    def _doubt(self, text: str) -> str:
        before, marker, after = self._until(text, self._style.ends)
        self._doubtful.append(before)
        if marker:
            self._think("".join(self._doubtful).rstrip())
            self._read, self._fresh = self._gap, True
        return after

    def _gap(self, text: str) -> str:
        bare = text.lstrip()
        if bare:
            self._read = self._answer
        return bare

    def _answer(self, text: str) -> str:
        before, _, after = self._until(text, self._style.dropped)
        self._parts.append(Text(before))
        return after

    def _think(self, text: str) -> None:
        text = text.lstrip() if self._fresh else text
        if text:
            self._fresh = False
            self._parts.append(Thought(text))


def make_splitter(
    style: Style,
    opening: Opening,
    calls: Sequence[str],
    numbering: Numbering,
    tools: Collection[str] = (),
) -> HarmonySplitter | MarkerSplitter:
    """Return the splitter for a style. `calls`: the markers of calls. `tools`: the names that a
    message in a channel can be addressed to."""
    if style.channels:
        return HarmonySplitter(numbering, opening, tools)
    return MarkerSplitter(style, within=opening is Opening.WITHIN, calls=calls)
