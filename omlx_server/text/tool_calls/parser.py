"""Finds tool calls in a model's text while it streams. Owned by one choice, on the asyncio thread.

Invariants: no text raises an error; the deltas, joined, don't depend on how the text was cut;
without a call they are the text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import regex

from omlx_server.text.parts import CallStart, Part, Text
from omlx_server.text.tool_calls.formats import CallFormat
from omlx_server.text.tool_calls.json_calls import JsonBody, JsonShape
from omlx_server.text.tool_calls.literal_calls import LiteralBody, LiteralShape, python_calls
from omlx_server.text.tool_calls.stream_parser import StreamParser
from omlx_server.text.tool_calls.tagged_body import TaggedBody, TaggedShape
from omlx_server.text.tool_calls.values import Numbering, tool_names

_Body = JsonBody | LiteralBody | TaggedBody

# How an answer begins that is nothing but calls.
_BARE_CALLS = regex.compile(
    r"(?P<fence>```(?:json|tool_call)?\s{0,9})[\[{]|\[\s{0,9}(?P<name>[^\s\[\](){}\"',:]{1,256})\("
)
_PYTHON = LiteralShape("]", "[", lambda text: python_calls(f"{text}]"))


class ToolParser(StreamParser):
    """The parser of one choice. The schemas of `tools` give values in markup their types. A bare
    JSON call counts if it names one of the tools."""

    def __init__(
        self,
        family: CallFormat,
        tools: Sequence[Mapping[str, Any]] = (),
        numbering: Numbering | None = None,
    ) -> None:
        super().__init__(self._read)
        self._family = family
        self._tools = tools
        self._names = tool_names(tools)
        addressed = family.addressed
        named = (addressed.format(name=name) for name in self._names) if addressed else ()
        self._starts = (*family.starts, *named)
        self._numbering = numbering or Numbering()
        self._body: _Body | None = None
        self._held_space = ""  # white space that is shown once text follows
        self._only_space_yet = True
        self._after_call = False  # the last part was of a call

    def _read(self, text: str) -> str:
        return (
            self._read_outside(text) if self._body is None else self._read_block(self._body, text)
        )

    def _finish_step(self, held: str, cut: bool) -> None:
        if self._body is not None:
            self._emit(self._body.finish())
        self._emit([Text(held)])
        if not self._after_call:
            self._parts.append(Text(self._held_space))

    def _read_block(self, body: _Body, text: str) -> str:
        self._emit(body.feed(text))
        if body.text_behind is None:
            return ""
        self._body = None
        return body.text_behind

    def _read_outside(self, text: str) -> str:
        stripped = text.lstrip()
        if self._only_space_yet and self._names and stripped.startswith(("{", "[", "`")):
            self._held_space += text[: len(text) - len(stripped)]
            return self._begin_bare_block(stripped)
        before, marker, after = self._split_at_first(text, self._starts)
        self._emit([Text(before)])
        return self._begin_block(marker, after) if marker else ""

    def _begin_bare_block(self, text: str) -> str:
        """Read the beginning of an answer that may be bare calls: JSON, perhaps in a fence, or
        Python."""
        begun = _BARE_CALLS.match(text, partial=True)
        if begun is not None and begun.partial:
            self._held, self._held_space = self._held_space + text, ""
            return ""
        self._only_space_yet = False
        if begun is not None and begun["fence"]:
            fenced = JsonShape("```")
            self._body = JsonBody(self._numbering, begun["fence"], fenced, self._names)
            return text[len(begun["fence"]) :]
        if begun is not None and begun["name"] in self._names:
            self._body = LiteralBody(self._numbering, "", _PYTHON)
        elif begun is None or begun["name"] is None:
            self._body = JsonBody(self._numbering, "", JsonShape(), self._names)
        return text

    def _begin_block(self, marker: str, text: str) -> str:
        family, numbering = self._family, self._numbering
        if family.beside is not None and marker in family.beside.starts:
            family = family.beside
        if not text.strip() and family.markup is not None:
            self._held = marker + text
            return ""
        if family.markup is None or text.lstrip().startswith("{"):
            self._body = JsonBody(numbering, marker, family.json)
        elif not isinstance(family.markup, TaggedShape):
            self._body = LiteralBody(numbering, marker, family.markup)
        elif marker not in family.others:
            self._body = TaggedBody(numbering, marker, family.markup, self._tools)
        else:  # the marker is the beginning of a call that stands alone
            self._body = TaggedBody(numbering, "", family.markup, self._tools, self._names, marker)
            text = marker + text
        self._only_space_yet = False
        return text

    def _emit(self, parts: list[Part]) -> None:
        for part in parts:
            if isinstance(part, Text):
                self._emit_text(part.text)
            else:
                if isinstance(part, CallStart):
                    self._held_space, self._after_call, self._only_space_yet = "", True, False
                self._parts.append(part)

    def _emit_text(self, text: str) -> None:
        if not text.strip() and (self._only_space_yet or self._after_call):
            self._held_space += text
            return
        if not text:
            return
        shown, self._held_space = self._held_space + text, ""
        if self._after_call:
            shown = shown.removeprefix("\n")
        self._parts.append(Text(shown))
        self._only_space_yet = self._after_call = False
