"""Tells a model's thoughts from its answer, while both come. Owned by one choice.

Invariants: the parts do not depend on how the text was cut; held back is only white space that may
be the last of a thought, and what may be the beginning of a marker.
"""

from collections.abc import Sequence
from typing import Protocol

from omlx_server.text.parts import Part, Reasoning, Text, merged
from omlx_server.text.reasoning.harmony import HarmonySplitter
from omlx_server.text.reasoning.style import Opening, Style
from omlx_server.text.tools.markers import earliest, held_length
from omlx_server.text.tools.numbering import Numbering


class Splitter(Protocol):
    @property
    def thinking(self) -> bool:
        """Whether what comes next is part of a thought."""

    def feed(self, text: str) -> list[Part]: ...
    def finish(self) -> list[Part]: ...


def make_splitter(
    style: Style, opening: Opening, ends: Sequence[str], numbering: Numbering
) -> Splitter:
    """`ends`: other markers that end a thought, and belong to the answer."""
    if style.channels:
        return HarmonySplitter(numbering, in_final=opening is Opening.PAST)
    return MarkerSplitter(style, within=opening is Opening.WITHIN, ends=ends)


class MarkerSplitter:
    """One thought, if any, before the answer: `<think>…</think>`."""

    def __init__(self, style: Style, *, within: bool = False, ends: Sequence[str] = ()) -> None:
        self._style = style
        self._ends = (style.end, *ends)
        self._read = self._thought if within else self._beginning
        self._held = ""
        self._parts: list[Part] = []
        self._fresh = True  # of the thought or of the answer nothing was shown yet

    @property
    def thinking(self) -> bool:
        return self._read == self._thought

    def feed(self, text: str) -> list[Part]:
        text, self._held = self._held + text, ""
        while text:
            text = self._read(text)
        return self._taken()

    def finish(self) -> list[Part]:
        """No more text comes. A thought without an end stays one."""
        held, self._held = self._held, ""
        if self.thinking:
            self._think(held.rstrip())
        else:
            self._tell(held)
        return self._taken()

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return merged(parts)

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
        found = earliest(text, self._ends)
        if found is None:
            sure = text[: len(text) - held_length(text, self._ends)].rstrip()
            self._think(sure)
            self._held = text[len(sure) :]
            return ""
        position, marker = found
        self._think(text[:position].rstrip())
        self._read, self._fresh = self._gap, True
        return text[position + len(marker) if marker == self._style.end else position :]

    def _gap(self, text: str) -> str:
        """White space after a thought is no answer."""
        bare = text.lstrip()
        if bare:
            self._read = self._answer
        return bare

    def _answer(self, text: str) -> str:
        dropped = self._style.dropped
        found = earliest(text, dropped)
        if found is None:
            keep = len(text) - held_length(text, dropped)
            self._tell(text[:keep])
            self._held = text[keep:]
            return ""
        self._tell(text[: found[0]])
        return text[found[0] + len(found[1]) :]

    def _think(self, text: str) -> None:
        text = text.lstrip() if self._fresh else text
        if text:
            self._fresh = False
            self._parts.append(Reasoning(text))

    def _tell(self, text: str) -> None:
        self._parts.append(Text(text))
