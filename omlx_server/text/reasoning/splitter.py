"""Tells a model's thoughts from its answer, while both come. Owned by one choice.

Invariants: the parts do not depend on how the text was cut; a `MarkerSplitter` holds back only
white space around a thought, and what may be the beginning of a marker.
"""

from collections.abc import Collection, Sequence

from omlx_server.text.parts import Reasoning, Text
from omlx_server.text.reasoning.harmony import HarmonySplitter
from omlx_server.text.reasoning.style import Opening, Style
from omlx_server.text.tool_calls.numbering import Numbering
from omlx_server.text.tool_calls.stream_parser import StreamParser


class MarkerSplitter(StreamParser):
    """Splits an answer that begins with at most one thought: `<think>…</think>`. `within`: the
    prompt ends in that thought. `ends`: see `make_splitter`."""

    def __init__(self, style: Style, *, within: bool = False, ends: Sequence[str] = ()) -> None:
        super().__init__(self._thought if within else self._beginning)
        self._style = style
        self._ends = (style.end, *ends)
        self._fresh = True  # of the thought or of the answer nothing was shown yet

    @property
    def thinking(self) -> bool:
        """Whether what comes next is part of a thought."""
        return self._read == self._thought

    def _end(self, held: str) -> None:
        """A thought without an end stays one."""
        if self.thinking:
            self._think(held.rstrip())
        else:
            self._parts.append(Text(held))

    def _beginning(self, text: str) -> str:
        """Nothing but white space so far: what comes is a thought or the answer itself."""
        start, bare = self._style.start, text.lstrip()
        if bare.startswith(start):
            self._read = self._thought
            return bare[len(start) :]
        if start.startswith(bare):
            self._held = text
            return ""
        self._read, self._fresh = self._answer, False
        return text

    def _thought(self, text: str) -> str:
        before, marker, rest = self._until(text, self._ends)
        sure = before.rstrip()
        self._think(sure)
        if not marker:
            self._held = before[len(sure) :] + self._held
            return ""
        self._read, self._fresh = self._gap, True
        return rest if marker == self._style.end else marker + rest

    def _gap(self, text: str) -> str:
        """White space after a thought is no answer."""
        bare = text.lstrip()
        if bare:
            self._read = self._answer
        return bare

    def _answer(self, text: str) -> str:
        before, _, rest = self._until(text, self._style.dropped)
        self._parts.append(Text(before))
        return rest

    def _think(self, text: str) -> None:
        text = text.lstrip() if self._fresh else text
        if text:
            self._fresh = False
            self._parts.append(Reasoning(text))


def make_splitter(
    style: Style,
    opening: Opening,
    ends: Sequence[str],
    numbering: Numbering,
    tools: Collection[str] = (),
) -> HarmonySplitter | MarkerSplitter:
    """The splitter for a style. `ends`: other markers that end a thought, and stay in the answer.
    `tools`: the names of those that a message in a channel can be addressed to."""
    if style.channels:
        return HarmonySplitter(numbering, opening, tools)
    return MarkerSplitter(style, within=opening is Opening.WITHIN, ends=ends)
