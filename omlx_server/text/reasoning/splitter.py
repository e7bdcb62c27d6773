"""Splits a stream into thoughts and answer. Owned by one choice."""

from collections.abc import Collection, Sequence

from omlx_server.text.parts import Text, Thought
from omlx_server.text.reasoning.harmony import HarmonySplitter
from omlx_server.text.reasoning.style import Opening, Style
from omlx_server.text.tool_calls.stream_parser import StreamParser
from omlx_server.text.tool_calls.values import Numbering


# Its steps follow each other: beginning, thought (or doubtful thought, from a marker of calls on),
# gap, answer.
class MarkerSplitter(StreamParser):
    """Splits an answer that begins with at most one thought: `<think>…</think>`. `within`: the
    prompt ends in that thought. `calls`: markers of calls; in a thought they are text, unless
    the thought never ends."""

    def __init__(self, style: Style, *, within: bool = False, calls: Sequence[str] = ()) -> None:
        super().__init__(self._read_thought if within else self._read_beginning)
        self._style = style
        self._calls = tuple(calls)
        self._doubtful: list[str] = []  # of a thought, from the first marker of calls on
        self._nothing_emitted = True

    @property
    def thinking(self) -> bool:
        return self._step in (self._read_thought, self._read_doubtful_thought)

    def _finish_step(self, held: str, cut: bool) -> None:
        if self._step == self._read_doubtful_thought:
            doubtful = "".join(self._doubtful) + held
            self._parts.append(Thought(doubtful) if cut else Text(doubtful.lstrip()))
        elif self.thinking:  # a thought without an end stays one
            self._emit_thought(held.rstrip())
        else:
            self._parts.append(Text(held))

    def _read_beginning(self, text: str) -> str:
        start, stripped = self._style.start, text.lstrip()
        if stripped.startswith(start):
            self._step = self._read_thought
            return stripped[len(start) :]
        if stripped.startswith(self._style.end):  # of a thought that the model did not open
            self._step = self._read_thought
            return stripped
        if start.startswith(stripped) or self._style.end.startswith(stripped):
            self._held = text
            return ""
        self._step = self._read_answer
        return text

    def _read_thought(self, text: str) -> str:
        before, marker, after = self._split_at_first(text, (*self._style.ends, *self._calls))
        stripped = before.rstrip()  # a thought is shown without the white space at its end
        self._emit_thought(stripped)
        if not marker:
            # Behind the white space stands what may begin a marker, held by the split.
            self._held = before[len(stripped) :] + self._held
            return ""
        if marker in self._calls:
            self._doubtful = [before[len(stripped) :], marker]
            self._step = self._read_doubtful_thought
        else:
            self._step = self._read_gap
        return after

    def _read_doubtful_thought(self, text: str) -> str:
        before, marker, after = self._split_at_first(text, self._style.ends)
        self._doubtful.append(before)
        if marker:
            self._emit_thought("".join(self._doubtful).rstrip())
            self._step = self._read_gap
        return after

    def _read_gap(self, text: str) -> str:
        stripped = text.lstrip()
        if stripped:
            self._step = self._read_answer
        return stripped

    def _read_answer(self, text: str) -> str:
        before, _, after = self._split_at_first(text, self._style.dropped)
        self._parts.append(Text(before))
        return after

    def _emit_thought(self, text: str) -> None:
        thought = text.lstrip() if self._nothing_emitted else text
        if thought:
            self._nothing_emitted = False
            self._parts.append(Thought(thought))


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
