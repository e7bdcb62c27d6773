"""Reads answers whose messages each begin with a recipient, as functionary 3.2 writes them:

    >>>all
    Let me look.>>>get_weather
    {"city": "Rome"}

The prompt ends with the first `>>>`, or within a text to be continued.
"""

from collections.abc import Collection

from omlx_server.text.parts import Text
from omlx_server.text.tool_calls.stream_parser import AddressedParser
from omlx_server.text.tool_calls.values import Numbering

RECIPIENT_MARK = ">>>"
_TO_READER = "all"
_MAX_NAME_CHARS = 256


class RecipientParser(AddressedParser):
    """Splits an answer into text and calls of `tools`. `in_text`: it goes on within a text."""

    thinking = False

    def __init__(
        self, numbering: Numbering, tools: Collection[str], *, in_text: bool = False
    ) -> None:
        first_step = self._read_text if in_text else self._read_name
        super().__init__(first_step, numbering, (RECIPIENT_MARK,))
        self._tools = tools
        self._mark = ""  # before the name, where the prompt did not end with it

    def _finish_step(self, held: str, cut: bool) -> None:
        if self._call is not None:
            self._end_call()
        else:
            self._parts.append(Text(self._mark + held))

    def _read_name(self, text: str) -> str:
        name, line_end, after = text.partition("\n")
        if not line_end and len(text) <= _MAX_NAME_CHARS and RECIPIENT_MARK not in text:
            self._held = text
            return ""
        mark, self._mark = self._mark, ""
        self._step = self._read_text
        if line_end and name.strip() == _TO_READER:
            return after
        if line_end and name.strip() in self._tools:
            self._begin_call(name.strip())
            return after
        self._parts.append(Text(mark))
        return text

    def _read_text(self, text: str) -> str:
        before, mark, after = self._split_at_first(text, (RECIPIENT_MARK,))
        self._parts.append(Text(before))
        if mark:
            self._step, self._mark = self._read_name, mark
        return after

    def _read_behind_call(self, text: str) -> str:
        self._step = self._read_text
        return text
