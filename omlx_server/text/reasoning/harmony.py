"""Reads the messages of gpt-oss: thoughts, calls and the answer, each behind a header.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

No text raises an error. Source: https://cookbook.openai.com/articles/openai-harmony.
"""

import re
from collections.abc import Callable, Collection

from omlx_server.text.parts import Text, Thought
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.tool_calls.stream_parser import AddressedParser
from omlx_server.text.tool_calls.values import Numbering

_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_STRAY_MARKERS = ("<|message|>", "<|constrain|>")  # they mean nothing within a message
_HEADER_BEGINS = ("<|channel|>", "<|start|>", "<|message|>", "to=")
_HEADER_ENDS = ("<|message|>", "<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_MAX_HEADER_CHARS = 512
_HEADER_WORDS = re.compile(
    r"(?:\s*(?:<\|(?:start|channel|constrain)\|>\s*\w*|to=[^\s<]+|json\b|code\b))*\s*"
)
_MARKERS = re.compile(r"<\|\w+\|>")


# Its steps: beginning -> header -> thought, answer, or start of a call -> its arguments (read by
# AddressedParser) -> behind the call -> header.
class HarmonySplitter(AddressedParser):
    """Splits an answer into thoughts, calls and text. `tools`: the names that may be called."""

    def __init__(
        self, numbering: Numbering, opening: Opening = Opening.FREE, tools: Collection[str] = ()
    ) -> None:
        first_steps = {
            Opening.FREE: self._read_beginning,
            Opening.WITHIN: self._read_thought,
            Opening.PAST: self._read_answer,
        }
        super().__init__(first_steps[opening], numbering, _ENDS)
        self._tools = tools
        self._tool_name = ""  # of the tool that a message is addressed to
        self._step_without_call = (
            self._read_answer
        )  # the step for a message that turns out to be no call

    @property
    def thinking(self) -> bool:
        return self._step in (self._read_thought, self._read_header)

    def _finish_step(self, held: str, cut: bool) -> None:
        if self._step == self._read_header:
            self._show_header(held)
        elif self._step == self._read_thought:
            self._parts.append(Thought(held))
        elif self._step == self._read_call_start:  # what ended the answer was the end of the call
            self._read_arguments(self._read_call_start("{}"))  # with no arguments
        elif self._call is not None:
            self._end_call()
        else:
            self._parts.append(Text(held))

    def _read_beginning(self, text: str) -> str:
        stripped = text.lstrip()
        if any(head != stripped and head.startswith(stripped) for head in _HEADER_BEGINS):
            self._held = text
            return ""
        self._step = self._read_header if stripped.startswith(_HEADER_BEGINS) else self._read_answer
        return text

    def _read_header(self, text: str) -> str:
        head = text[:_MAX_HEADER_CHARS]
        header, marker, _ = self._split_at_first(head, _HEADER_ENDS)
        self._held = ""
        if marker:
            if marker == "<|message|>":
                self._begin_message(header)
            else:
                self._show_header(header)
            return text[len(header) + len(marker) :]
        if head == text:
            self._held = text
            return ""
        self._show_header(head)  # too long for a header
        self._step = self._read_answer
        return text[len(head) :]

    def _show_header(self, header: str) -> None:
        """Show a header without a message as text, without the words of headers."""
        match = _HEADER_WORDS.match(header)
        text = header[match.end() if match else 0 :]
        self._parts.append(Text(_MARKERS.sub("", text)))

    def _begin_message(self, header: str) -> None:
        is_thought = _CHANNEL.findall(header)[-1:] == ["analysis"]
        recipient = (_RECIPIENT.findall(header) or [""])[-1]
        self._tool_name = recipient.removeprefix("functions.")
        self._step_without_call = self._read_thought if is_thought else self._read_answer
        is_to_tool = self._tool_name != recipient or self._tool_name in self._tools
        is_call = bool(self._tools) and is_to_tool
        self._step = self._read_call_start if is_call else self._step_without_call

    def _read_call_start(self, text: str) -> str:
        stripped = text.lstrip()
        if any(end != stripped and end.startswith(stripped) for end in _ENDS):
            self._held = text
            return ""
        if stripped.startswith("{"):
            self._begin_call(self._tool_name)
            return stripped
        if stripped.startswith(_ENDS):
            return "{}" + stripped
        self._step = self._step_without_call
        return text

    def _read_behind_call(self, text: str) -> str:
        stripped = text.lstrip()
        if stripped:
            self._step = self._read_answer
        return stripped

    def _read_thought(self, text: str) -> str:
        return self._read_body(text, lambda shown: self._parts.append(Thought(shown)))

    def _read_answer(self, text: str) -> str:
        return self._read_body(text, lambda shown: self._parts.append(Text(shown)))

    def _read_body(self, text: str, show: Callable[[str], None]) -> str:
        before, marker, after = self._split_at_first(text, (*_ENDS, *_STRAY_MARKERS))
        show(before)
        if not marker or marker in _STRAY_MARKERS:
            return after
        self._step = self._read_header
        return marker + after if marker in _HEADER_BEGINS else after
