"""Reads the messages of gpt-oss: thoughts, calls and the answer, each behind a header.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

No text raises an error. Source: https://cookbook.openai.com/articles/openai-harmony.
"""

import re
from collections.abc import Callable, Collection

from omlx_server.text.parts import Text, Thought
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.tool_calls.numbering import Numbering
from omlx_server.text.tool_calls.stream_parser import AddressedParser

_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_STRAY = ("<|message|>", "<|constrain|>")  # they mean nothing within a message
_HEADS = ("<|channel|>", "<|start|>", "<|message|>", "to=")
_HEADER_ENDS = ("<|message|>", "<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
# A header that grows beyond this is none.
_MAX_HEADER_CHARS = 512
_HEADER = re.compile(
    r"(?:\s*(?:<\|(?:start|channel|constrain)\|>\s*\w*|to=[^\s<]+|json\b|code\b))*\s*"
)
_MARKERS = re.compile(r"<\|\w+\|>")


class HarmonySplitter(AddressedParser):
    """Splits an answer into thoughts, calls and text. `tools`: the names that may be called."""

    def __init__(
        self, numbering: Numbering, opening: Opening = Opening.FREE, tools: Collection[str] = ()
    ) -> None:
        first = {
            Opening.FREE: self._beginning,
            Opening.WITHIN: self._analysis,
            Opening.PAST: self._final,
        }
        super().__init__(first[opening], numbering, _ENDS)
        self._tools = tools
        self._name = ""  # of the tool that a message is addressed to
        self._otherwise = self._final  # reads a message to a tool that is no call

    @property
    def thinking(self) -> bool:
        return self._read in (self._analysis, self._header)

    def _end(self, held: str, cut: bool) -> None:
        if self._read == self._header:
            self._without_message(held)
        elif self._read == self._analysis:
            self._parts.append(Thought(held))
        elif self._read == self._calling:  # what ended the answer was the end of the call
            self._arguments(self._calling("{}"))
        elif self._call is not None:
            self._end_call()
        else:
            self._parts.append(Text(held))

    def _beginning(self, text: str) -> str:
        bare = text.lstrip()
        if any(head != bare and head.startswith(bare) for head in _HEADS):
            self._held = text
            return ""
        self._read = self._header if bare.startswith(_HEADS) else self._final
        return text

    def _header(self, text: str) -> str:
        head = text[:_MAX_HEADER_CHARS]
        header, marker, _ = self._until(head, _HEADER_ENDS)
        self._held = ""
        if not marker and head == text:
            self._held = text
            return ""
        if marker == "<|message|>":
            self._open(header)
        elif marker:
            self._without_message(header)
        else:
            self._without_message(head)
            self._read = self._final
        return text[len(header) + len(marker) :] if marker else text[len(head) :]

    def _without_message(self, header: str) -> None:
        match = _HEADER.match(header)
        left = header[match.end() if match else 0 :]
        self._parts.append(Text(_MARKERS.sub("", left)))

    def _open(self, header: str) -> None:
        thought = _CHANNEL.findall(header)[-1:] == ["analysis"]
        recipient = (_RECIPIENT.findall(header) or [""])[-1]
        self._name = recipient.removeprefix("functions.")
        self._read = self._otherwise = self._analysis if thought else self._final
        if self._tools and (self._name != recipient or self._name in self._tools):
            self._read = self._calling

    def _calling(self, text: str) -> str:
        bare = text.lstrip()
        if any(end != bare and end.startswith(bare) for end in _ENDS):
            self._held = text
            return ""
        if bare.startswith("{"):
            self._begin_call(self._name)
            return bare
        if bare.startswith(_ENDS):
            return "{}" + bare
        self._read = self._otherwise
        return text

    def _behind_call(self, text: str) -> str:
        bare = text.lstrip()
        if bare:
            self._read = self._final
        return bare

    def _analysis(self, text: str) -> str:
        return self._body(text, lambda shown: self._parts.append(Thought(shown)))

    def _final(self, text: str) -> str:
        return self._body(text, lambda shown: self._parts.append(Text(shown)))

    def _body(self, text: str, show: Callable[[str], None]) -> str:
        before, marker, after = self._until(text, (*_ENDS, *_STRAY))
        show(before)
        if not marker or marker in _STRAY:
            return after
        self._read = self._header
        return marker + after if marker in _HEADS else after
