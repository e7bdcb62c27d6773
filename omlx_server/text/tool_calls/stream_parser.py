"""Parses text that comes in pieces, step by step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from omlx_server.text.markers import at, held_length
from omlx_server.text.parts import Part, merged
from omlx_server.text.tool_calls.json_calls import NamedCall
from omlx_server.text.tool_calls.numbering import Numbering


class StreamParser(ABC):
    """Base of parsers. The step `_read` takes text and returns what it leaves to the next step;
    it holds back `_held` and emits `_parts`."""

    def __init__(self, first: Callable[[str], str]) -> None:
        self._read = first
        self._held = ""
        self._parts: list[Part] = []

    def feed(self, text: str) -> list[Part]:
        text, self._held = self._held + text, ""
        while text:
            text = self._read(text)
        return self._taken()

    def finish(self, *, cut: bool = False) -> list[Part]:
        """Return the last parts. `cut`: the answer is not whole."""
        remainder, self._held = self._held, ""
        self._end(remainder, cut)
        return self._taken()

    @abstractmethod
    def _end(self, held: str, cut: bool) -> None: ...
    def _until(self, text: str, markers: Sequence[str]) -> tuple[str, str, str]:
        """Return the text before the first of `markers`, the longer of two, that one, and the
        text behind it. Without one the end that may begin one is held back."""
        starts = [(place, -len(m), m) for m in markers if (place := text.find(m)) >= 0]
        if not starts:
            sure = len(text) - held_length(text, markers)
            self._held = text[sure:]
            return text[:sure], "", ""
        position, _, marker = min(starts)
        return text[:position], marker, text[position + len(marker) :]

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return merged(parts)


class AddressedParser(StreamParser):
    """Base of parsers of messages whose header names a tool: the text is the arguments, at most
    up to one of `ends`. The step `_behind_call` reads on."""

    def __init__(
        self, first: Callable[[str], str], numbering: Numbering, ends: Sequence[str]
    ) -> None:
        super().__init__(first)
        self._numbering = numbering
        self._ends = ends
        self._call: NamedCall | None = None

    @abstractmethod
    def _behind_call(self, text: str) -> str: ...
    def _begin_call(self, name: str) -> None:
        self._call = NamedCall(self._numbering, name)
        self._read = self._arguments

    def _end_call(self) -> None:
        if self._call is not None:
            self._parts += self._call.end(cut=False)
        self._call, self._read = None, self._behind_call

    def _arguments(self, text: str) -> str:
        call = self._call
        assert call is not None
        for position, char in enumerate(text):
            marker = None if call.repair.in_string else at(text, position, self._ends)
            if call.repair.done or marker:
                self._end_call()
                return text[position:]
            if marker == "":
                self._held = text[position:]
                return ""
            self._parts += call.feed(char)
        return ""
