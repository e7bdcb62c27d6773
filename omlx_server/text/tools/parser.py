"""Tool calls out of a model's text, while it comes. Owned by one choice, on the asyncio thread.

Invariants: nothing that is fed raises; what the deltas assemble to doesn't depend on how the text
was cut; without a call, the `Text` deltas joined are the text. Of text outside calls only a
possible beginning of a start marker is held back, and white space at the start and after a call:
before and between calls it is no content.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from omlx_server.text.parts import CallStart, Part, Text, merged
from omlx_server.text.tools.families import Family
from omlx_server.text.tools.json_body import JsonBody, JsonShape
from omlx_server.text.tools.markers import earliest, held_length
from omlx_server.text.tools.markup_body import MarkupBody
from omlx_server.text.tools.numbering import Numbering
from omlx_server.text.tools.schemas import plain_tools, tool_names


class _Body(Protocol):
    """What reads within markers."""

    rest: str | None

    def feed(self, text: str) -> list[Part]: ...
    def finish(self) -> list[Part]: ...


class ToolParser:
    """`tools`: the client's, as OpenAI has them; their schemas type the values of markup.

    An answer that is a bare JSON call, without markers, counts when it names one of the tools.
    """

    def __init__(
        self,
        family: Family,
        tools: Sequence[Mapping[str, Any]] = (),
        numbering: Numbering | None = None,
    ) -> None:
        self._family = family
        self._tools = plain_tools(tools)
        self._names = tool_names(tools)
        self._numbering = numbering or Numbering()
        self._body: _Body | None = None
        self._held = ""
        self._space = ""
        self._fresh = True  # nothing but white space so far
        self._after_call = False
        self._deltas: list[Part] = []

    @property
    def calls(self) -> int:
        """How many calls have begun."""
        return self._numbering.count

    def feed(self, text: str) -> list[Part]:
        while text:
            if self._body is None:
                text = self._outside(self._held + text)
            else:
                text = self._inside(self._body, text)
        return self._taken()

    def finish(self) -> list[Part]:
        """No more text comes."""
        if self._body is not None:
            self._tell(self._body.finish())
            self._body = None
        held, self._held = self._held, ""
        self._tell([Text(held)])
        if self._space and not self._after_call:
            self._deltas.append(Text(self._space))
        self._space = ""
        return self._taken()

    def _taken(self) -> list[Part]:
        deltas, self._deltas = self._deltas, []
        return merged(deltas)

    def _inside(self, body: _Body, text: str) -> str:
        """Gives what comes after the block, once it has ended."""
        self._tell(body.feed(text))
        if body.rest is None:
            return ""
        self._body = None
        return body.rest

    def _outside(self, text: str) -> str:
        """Gives what comes after a start marker."""
        self._held = ""
        if self._fresh and self._names and (bare := text.lstrip())[:1] in ("{", "["):
            self._space += text[: len(text) - len(bare)]
            self._fresh = False
            self._body = JsonBody(JsonShape(), self._numbering, "", self._names)
            return bare
        start = self._family.start
        found = earliest(text, (start,))
        if found is None:
            keep = len(text) - held_length(text, (start,))
            self._tell([Text(text[:keep])])
            self._held = text[keep:]
            return ""
        self._tell([Text(text[: found[0]])])
        return self._open(text[found[0] + len(start) :])

    def _open(self, text: str) -> str:
        """Chooses what reads the block, by its first character."""
        family = self._family
        if family.markup is None or text.lstrip().startswith("{"):
            self._body = JsonBody(family.json, self._numbering, family.start)
        elif text.strip():
            self._body = MarkupBody(family.markup, self._numbering, family.start, self._tools)
        else:
            self._held = family.start + text
            return ""
        self._fresh = False
        return text

    def _tell(self, deltas: list[Part]) -> None:
        for delta in deltas:
            if isinstance(delta, Text):
                self._tell_text(delta.text)
            else:
                if isinstance(delta, CallStart):
                    self._space, self._after_call, self._fresh = "", True, False
                self._deltas.append(delta)

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
        self._deltas.append(Text(space))
        self._fresh = self._after_call = False
