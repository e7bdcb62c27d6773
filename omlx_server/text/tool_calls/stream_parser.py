"""Parses text that comes in pieces, step by step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from omlx_server.text.markers import earliest, held_length
from omlx_server.text.parts import Part, merged


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
        match = earliest(text, markers)
        if match is None:
            sure = len(text) - held_length(text, markers)
            self._held = text[sure:]
            return text[:sure], "", ""
        position, marker = match
        return text[:position], marker, text[position + len(marker) :]

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return merged(parts)
