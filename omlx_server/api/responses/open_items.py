"""Makes the events of output items while they grow, in the order of sending. Pure.

Each item has output_item.added, the events of its content, and output_item.done.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from omlx_server.api.chat.choices import LoggedToken
from omlx_server.api.chat.tools import InputReader
from omlx_server.api.openai import shapes
from omlx_server.api.openai.answers import TokenLogprob
from omlx_server.api.responses import answers
from omlx_server.api.responses.event_types import AnyResponseEvent as Event
from omlx_server.api.responses.items.items import call_shape, reasoning_shape
from omlx_server.api.responses.items.seals import seal_reasoning


@dataclass(slots=True, eq=False)
class _GrowingItem:
    """An item that grows with `add`. `sequence_numbers` counts the events of the whole response."""

    id: str
    output_index: int
    sequence_numbers: Iterator[int]
    _pieces: list[str] = field(default_factory=list)

    @property
    def _text(self) -> str:
        return "".join(self._pieces)

    def _item_event(
        self,
        kind: Literal["response.output_item.added", "response.output_item.done"],
        item: answers.OutputItem,
    ) -> Event:
        return {
            "type": kind,
            "output_index": self.output_index,
            "item": item,
            "sequence_number": next(self.sequence_numbers),
        }

    def _event(self, kind: str, **fields: object) -> Event:
        place = {"type": kind, "item_id": self.id, "output_index": self.output_index}
        return cast(Event, {**place, **fields, "sequence_number": next(self.sequence_numbers)})

    def _content_event(self, kind: str, **fields: object) -> Event:
        return self._event(kind, content_index=0, **fields)


@dataclass(slots=True, eq=False)
class OpenMessage(_GrowingItem):
    _logprobs: list[TokenLogprob] = field(default_factory=list)

    def opening_events(self) -> list[Event]:
        item: answers.MessageOfResponse = {**self.shape("in_progress"), "content": []}
        return [
            self._item_event("response.output_item.added", item),
            self._content_event("response.content_part.added", part=self._part()),
        ]

    def add(self, text: str, tokens: Sequence[LoggedToken]) -> list[Event]:
        logprobs = shapes.logprobs(tokens)
        self._pieces.append(text)
        self._logprobs += logprobs
        return [self._content_event("response.output_text.delta", delta=text, logprobs=logprobs)]

    def closing_events(self, status: answers.ItemStatus) -> list[Event]:
        part = self._part()
        return [
            self._content_event(
                "response.output_text.done", text=part["text"], logprobs=part["logprobs"]
            ),
            self._content_event("response.content_part.done", part=part),
            self._item_event("response.output_item.done", self.shape(status)),
        ]

    def shape(self, status: answers.ItemStatus) -> answers.MessageOfResponse:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self._part()],
        }

    def _part(self) -> answers.OutputText:
        logprobs = list(self._logprobs)
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": logprobs}


@dataclass(slots=True, eq=False, kw_only=True)
class OpenReasoning(_GrowingItem):
    """Growing reasoning; if `sealed`, the finished item has `encrypted_content`."""

    sealed: bool

    def opening_events(self) -> list[Event]:
        item: answers.ReasoningOfResponse = {**self.shape("in_progress"), "content": []}
        return [
            self._item_event("response.output_item.added", item),
            self._content_event("response.content_part.added", part=self._part()),
        ]

    def add(self, text: str) -> list[Event]:
        self._pieces.append(text)
        return [self._content_event("response.reasoning_text.delta", delta=text)]

    def closing_events(self, status: answers.ItemStatus) -> list[Event]:
        return [
            self._content_event("response.reasoning_text.done", text=self._text),
            self._content_event("response.content_part.done", part=self._part()),
            self._item_event("response.output_item.done", self.shape(status)),
        ]

    def shape(self, status: answers.ItemStatus) -> answers.ReasoningOfResponse:
        sealed = seal_reasoning(self._text) if self.sealed and status != "in_progress" else None
        return reasoning_shape(self.id, [], [self._text], sealed, status)

    def _part(self) -> answers.ReasoningText:
        return {"type": "reasoning_text", "text": self._text}


@dataclass(slots=True, eq=False, kw_only=True)
class OpenCall(_GrowingItem):
    """A growing call of a function, or with `reader` of a custom tool. `tool`: name, namespace."""

    call_id: str
    tool: tuple[str, str | None]
    reader: InputReader | None = None

    def opening_events(self) -> list[Event]:
        return [self._item_event("response.output_item.added", self.shape("in_progress"))]

    def add(self, fragment: str) -> list[Event]:
        if self.reader is not None:
            return self._add_input(self.reader.feed(fragment))
        self._pieces.append(fragment)
        return [self._event("response.function_call_arguments.delta", delta=fragment)]

    def closing_events(self, status: answers.ItemStatus) -> list[Event]:
        if self.reader is None:
            kind = "response.function_call_arguments.done"
            events = [self._event(kind, arguments=self._text)]
        else:
            events = self._add_input(self.reader.finish())
            events.append(self._event("response.custom_tool_call_input.done", input=self._text))
        return [*events, self._item_event("response.output_item.done", self.shape(status))]

    def shape(
        self, status: answers.ItemStatus
    ) -> answers.FunctionCallOfResponse | answers.CustomCallOfResponse:
        is_custom = self.reader is not None
        return call_shape(self.id, self.call_id, self.tool, self._text, status, is_custom=is_custom)

    def _add_input(self, text: str) -> list[Event]:
        if not text:
            return []
        self._pieces.append(text)
        return [self._event("response.custom_tool_call_input.delta", delta=text)]


OpenItem = OpenMessage | OpenReasoning | OpenCall
