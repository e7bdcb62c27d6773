"""The messages of gpt-oss: thoughts, calls and the answer, each behind a header. Owned by a choice.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

Source: https://cookbook.openai.com/articles/openai-harmony. Nothing that is fed raises.
"""

import re
from collections.abc import Callable

from omlx_server.text.parts import Part, Reasoning, Text, merged
from omlx_server.text.tools.json_calls import NamedCall
from omlx_server.text.tools.markers import earliest, held_length
from omlx_server.text.tools.numbering import Numbering

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_HEADS = ("<|channel|>", "<|start|>", "<|message|>", "to=")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
# A header that grows beyond this is none.
_MAX_HEADER_CHARS = 512


class HarmonySplitter:
    """`in_final`: the prompt ends within a message for the reader."""

    def __init__(self, numbering: Numbering, *, in_final: bool = False) -> None:
        self._numbering = numbering
        self._read: Callable[[str], str] = self._final if in_final else self._beginning
        self._held = ""
        self._parts: list[Part] = []
        self._call: NamedCall | None = None

    @property
    def thinking(self) -> bool:
        return self._read in (self._analysis, self._header)

    def feed(self, text: str) -> list[Part]:
        text, self._held = self._held + text, ""
        while text:
            text = self._read(text)
        return self._taken()

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if self._read == self._analysis:
            self._parts.append(Reasoning(held))
        elif self._call is not None:
            self._parts += self._ended_call(held, cut=True)
        elif self._read != self._header:  # a header that was cut says nothing
            self._parts.append(Text(held))
        return self._taken()

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return merged(parts)

    def _beginning(self, text: str) -> str:
        """A model that writes no header at all means what it writes."""
        bare = text.lstrip()
        if any(head != bare and head.startswith(bare) for head in _HEADS):
            self._held = text
            return ""
        self._read = self._header if bare.startswith(_HEADS) else self._final
        return text

    def _header(self, text: str) -> str:
        found = earliest(text, (_MESSAGE,))
        if found is None and len(text) < _MAX_HEADER_CHARS:
            self._held = text
            return ""
        header, body = text[: found[0]] if found else "", text[found[0] :] if found else text
        self._open(header)
        return body[len(_MESSAGE) :] if found else body

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
        found = earliest(text, _ENDS)
        if found is None:
            keep = len(text) - held_length(text, _ENDS)
            self._parts += shown(text[:keep])
            self._held = text[keep:]
            return ""
        self._parts += shown(text[: found[0]])
        if self._call is not None:
            self._parts += self._ended_call("", cut=False)
        self._read = self._header
        begins_next = found[1] in _HEADS
        return text[found[0] if begins_next else found[0] + len(found[1]) :]

    def _arguments(self, text: str) -> list[Part]:
        call, parts = self._call, list[Part]()
        for char in text:
            if call is not None and not call.done:
                parts += call.feed(char)
        return parts

    def _ended_call(self, rest: str, *, cut: bool) -> list[Part]:
        parts = self._arguments(rest)
        call, self._call = self._call, None
        return parts if call is None or call.done else parts + call.end(cut)
