"""Finds tool calls in a model's text, while it comes. Owned by one choice, on the asyncio thread.

Invariants: nothing that is fed raises; what the deltas assemble to doesn't depend on how the text
was cut; without a call, the `Text` deltas joined are the text. Of text outside calls only a
possible beginning of a start marker is held back, and white space at the start and after a call:
before and between calls it is no content.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from omlx_server.text.parts import CallStart, Part, Text
from omlx_server.text.tool_calls.formats import Family
from omlx_server.text.tool_calls.json_body import JsonBody, JsonShape
from omlx_server.text.tool_calls.literal_body import LiteralBody
from omlx_server.text.tool_calls.numbering import Numbering
from omlx_server.text.tool_calls.stream_parser import StreamParser
from omlx_server.text.tool_calls.tagged_body import TaggedBody, TaggedShape

_Body = JsonBody | LiteralBody | TaggedBody


class ToolParser(StreamParser):
    """`tools`: the client's, as OpenAI has them; their schemas give values in markup their types.

    An answer that is a bare JSON call, without markers, counts when it names one of the tools.
    """

    def __init__(
        self,
        family: Family,
        tools: Sequence[Mapping[str, Any]] = (),
        numbering: Numbering | None = None,
    ) -> None:
        super().__init__(self._step)
        self._family = family
        self._tools = tools
        self._names = frozenset(tool["function"]["name"] for tool in tools)
        self._numbering = numbering or Numbering()
        self._body: _Body | None = None
        self._space = ""
        self._fresh = True  # nothing but white space so far
        self._after_call = False

    def _step(self, text: str) -> str:
        return self._outside(text) if self._body is None else self._inside(self._body, text)

    def _end(self, held: str, cut: bool) -> None:
        if self._body is not None:
            self._tell(self._body.finish())
        self._tell([Text(held)])
        if not self._after_call:
            self._parts.append(Text(self._space))

    def _inside(self, body: _Body, text: str) -> str:
        """Gives what comes after the block, once it has ended."""
        self._tell(body.feed(text))
        if body.rest is None:
            return ""
        self._body = None
        return body.rest

    def _outside(self, text: str) -> str:
        """Gives what comes after a start marker."""
        if self._fresh and self._names and (bare := text.lstrip())[:1] in ("{", "["):
            self._space += text[: len(text) - len(bare)]
            self._fresh = False
            self._body = JsonBody(self._numbering, "", JsonShape(), self._names)
            return bare
        before, marker, rest = self._until(text, self._family.starts)
        self._tell([Text(before)])
        return self._open(marker, rest) if marker else ""

    def _open(self, marker: str, text: str) -> str:
        """Chooses what reads the block, by its first character."""
        family, numbering = self._family, self._numbering
        if not text.strip() and family.markup is not None:
            self._held = marker + text
            return ""
        if family.markup is None or text.lstrip().startswith("{"):
            self._body = JsonBody(numbering, marker, family.json)
        elif not isinstance(family.markup, TaggedShape):
            self._body = LiteralBody(numbering, marker, family.markup)
        elif marker == family.start:
            self._body = TaggedBody(numbering, marker, family.markup, self._tools)
        else:  # the marker is the beginning of a call that stands alone
            self._body = TaggedBody(numbering, "", family.markup, self._tools, self._names)
            text = marker + text
        self._fresh = False
        return text

    def _tell(self, deltas: list[Part]) -> None:
        for delta in deltas:
            if isinstance(delta, Text):
                self._tell_text(delta.text)
            else:
                if isinstance(delta, CallStart):
                    self._space, self._after_call, self._fresh = "", True, False
                self._parts.append(delta)

    def _tell_text(self, text: str) -> None:
        """White space waits for what comes next, at the start and after a call."""
        waiting = self._fresh or self._after_call
        if waiting and not text.strip():
            self._space += text
            return
        if not text:
            return
        space, self._space = self._space + text, ""
        if self._after_call:
            space = space.removeprefix("\n")
        self._parts.append(Text(space))
        self._fresh = self._after_call = False
