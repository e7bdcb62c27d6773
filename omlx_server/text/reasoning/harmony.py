"""Reads the messages of gpt-oss: thoughts, calls and the answer, each behind a header. Owned by a
choice.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

Source: https://cookbook.openai.com/articles/openai-harmony. No text that is fed raises an error.
"""

import re
from collections.abc import Callable

from omlx_server.text.parts import Part, Reasoning, Text
from omlx_server.text.tool_calls.json_calls import NamedCall
from omlx_server.text.tool_calls.numbering import Numbering
from omlx_server.text.tool_calls.stream_parser import StreamParser

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_HEADS = ("<|channel|>", "<|start|>", "<|message|>", "to=")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
# A header that grows beyond this is none.
_MAX_HEADER_CHARS = 512


class HarmonySplitter(StreamParser):
    """Splits an answer into thoughts, calls and text. `in_final`: the prompt ends within a message
    for the reader."""

    def __init__(self, numbering: Numbering, *, in_final: bool = False) -> None:
        super().__init__(self._final if in_final else self._beginning)
        self._numbering = numbering
        self._call: NamedCall | None = None

    @property
    def thinking(self) -> bool:
        return self._read in (self._analysis, self._header)

    def _end(self, held: str) -> None:
        if self._read == self._analysis:
            self._parts.append(Reasoning(held))
        elif self._call is not None:
            self._parts += self._ended_call(held, cut=True)
        elif self._read != self._header:  # a header that was cut says nothing
            self._parts.append(Text(held))

    def _beginning(self, text: str) -> str:
        """A model that writes no header at all means what it writes."""
        bare = text.lstrip()
        if any(head != bare and head.startswith(bare) for head in _HEADS):
            self._held = text
            return ""
        self._read = self._header if bare.startswith(_HEADS) else self._final
        return text

    def _header(self, text: str) -> str:
        header, found, body = text.partition(_MESSAGE)
        if not found and len(text) < _MAX_HEADER_CHARS:
            self._held = text
            return ""
        self._open(header if found else "")
        return body if found else text

    def _open(self, header: str) -> None:
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None:
            self._call = NamedCall(self._numbering, recipient[1])
            self._read = self._calling
        elif channel is not None and channel[1] == "analysis":
            self._read = self._analysis
        else:  # "final", or a "commentary" for the reader before a call
            self._read = self._final

    def _analysis(self, text: str) -> str:
        return self._body(text, lambda shown: [Reasoning(shown)])

    def _final(self, text: str) -> str:
        return self._body(text, lambda shown: [Text(shown)])

    def _calling(self, text: str) -> str:
        return self._body(text, self._arguments)

    def _body(self, text: str, shown: Callable[[str], list[Part]]) -> str:
        before, marker, rest = self._until(text, _ENDS)
        self._parts += shown(before)
        if not marker:
            return ""
        if self._call is not None:
            self._parts += self._ended_call("", cut=False)
        self._read = self._header
        return marker + rest if marker in _HEADS else rest

    def _arguments(self, text: str) -> list[Part]:
        call, parts = self._call, list[Part]()
        for char in text:
            if call is not None and not call.repair.done:
                parts += call.feed(char)
        return parts

    def _ended_call(self, rest: str, *, cut: bool) -> list[Part]:
        parts = self._arguments(rest)
        call, self._call = self._call, None
        return parts if call is None or call.repair.done else parts + call.end(cut)
