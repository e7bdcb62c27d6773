"""Parses text that comes in pieces, step by step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from omlx_server.text.encoding.searching import begun_marker_length, marker_at
from omlx_server.text.parts import Part, merged
from omlx_server.text.tool_calls.json_calls import NamedCall
from omlx_server.text.tool_calls.values import Numbering


class StreamParser(ABC):
    """Base of parsers. Each state is a method, `_step`: it takes unread text, returns what it
    leaves to the next step, adds to `_parts`, and may hold text back in `_held`."""

    def __init__(self, first: Callable[[str], str]) -> None:
        self._step = first
        self._held = ""
        self._parts: list[Part] = []

    def feed(self, text: str) -> list[Part]:
        unread, self._held = self._held + text, ""
        while unread:
            unread = self._step(unread)
        return self._pop_parts()

    def finish(self, *, cut: bool = False) -> list[Part]:
        """Return the last parts. `cut`: the answer is not whole."""
        held, self._held = self._held, ""
        self._finish_step(held, cut)
        return self._pop_parts()

    @abstractmethod
    def _finish_step(self, held: str, cut: bool) -> None: ...
    def _split_at_first(self, text: str, markers: Sequence[str]) -> tuple[str, str, str]:
        """Return the text before the first of `markers` (of two, the longer one), that marker, and
        the text behind it. Without one, an end of `text` that may begin one is held back."""
        starts = [(place, -len(m), m) for m in markers if (place := text.find(m)) >= 0]
        if not starts:
            certain = len(text) - begun_marker_length(text, markers)
            self._held = text[certain:]
            return text[:certain], "", ""
        position, _, marker = min(starts)
        return text[:position], marker, text[position + len(marker) :]

    def _pop_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return merged(parts)


class AddressedParser(StreamParser):
    """Base of parsers of messages whose header names a tool. The text behind it is the arguments,
    at most up to one of `ends`; then the step `_read_behind_call` follows."""

    def __init__(
        self, first: Callable[[str], str], numbering: Numbering, ends: Sequence[str]
    ) -> None:
        super().__init__(first)
        self._numbering = numbering
        self._ends = ends
        self._call: NamedCall | None = None

    @abstractmethod
    def _read_behind_call(self, text: str) -> str: ...
    def _begin_call(self, name: str) -> None:
        self._call = NamedCall(self._numbering, name)
        self._step = self._read_arguments

    def _end_call(self) -> None:
        if self._call is not None:
            self._parts += self._call.end(cut=False)
        self._call, self._step = None, self._read_behind_call

    def _read_arguments(self, text: str) -> str:
        call = self._call
        assert call is not None
        for position, char in enumerate(text):
            marker = None if call.repair.in_string else marker_at(text, position, self._ends)
            if call.repair.done or marker:
                self._end_call()
                return text[position:]
            if marker == "":
                self._held = text[position:]
                return ""
            self._parts += call.feed(char)
        return ""
