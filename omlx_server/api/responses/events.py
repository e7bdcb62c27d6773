"""Turns the deltas of an answer into a response, and into events in OpenAI's order. Pure.

    created, in_progress, (an item's events)*, completed | incomplete | failed

One item is open at a time. The last event carries the whole response.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, cast

from omlx_server.api.chat.choices import ChoiceDelta, LoggedToken, TokenCounts
from omlx_server.api.chat.finish import Finish
from omlx_server.api.chat.tools import InputReader
from omlx_server.api.openai.answers import TokenLogprob
from omlx_server.api.openai.shapes import logprobs as logprobs_of
from omlx_server.api.responses import answers, shapes
from omlx_server.api.responses.answers import ItemStatus, OutputItem, Response
from omlx_server.api.responses.event_types import (
    AnyResponseEvent,
    Problem,
    ResponseErrorEvent,
    ResponseEvent,
    ResponseEventType,
)
from omlx_server.api.responses.event_types import AnyResponseEvent as Event
from omlx_server.api.responses.items.items import ItemIds, call_shape, reasoning_shape
from omlx_server.api.responses.items.seals import seal_reasoning
from omlx_server.api.responses.tool_names import ToolNames
from omlx_server.errors import OmlxError
from omlx_server.text.parts import Arguments, CallStart, Part, Text, Thought


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
        logprobs = logprobs_of(tokens)
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


class ResponseEvents:
    """Makes the events of one response: call `begin`, `add` for each delta, then `end` or `fail`.
    `response` is its current state."""

    def __init__(
        self, new_response: Response, ids: ItemIds, names: ToolNames, *, seals_reasoning: bool
    ) -> None:
        self.response = new_response
        self._names = names
        self._ids = ids
        self._seals_reasoning = seals_reasoning
        self._sequence_numbers = count()
        self._open_item: OpenItem | None = None
        self._closed_items: list[OutputItem] = []
        # Blank text becomes a message only if more follows or nothing else comes.
        self._blank_text = ""
        self._blank_tokens: tuple[LoggedToken, ...] = ()
        self._has_message_or_call = False
        self._finish: Finish | None = None

    def begin(self) -> list[AnyResponseEvent]:
        return [
            self._response_event("response.created"),
            self._response_event("response.in_progress"),
        ]

    def add(self, delta: ChoiceDelta) -> list[AnyResponseEvent]:
        """Return the events for a delta. Its tokens go with its first text."""
        tokens = delta.tokens
        events: list[AnyResponseEvent] = []
        for part in delta.parts:
            events += self._add_part(part, tokens)
            if isinstance(part, Text):
                tokens = ()
        if tokens and isinstance(self._open_item, OpenMessage):
            # The text of these tokens came with an earlier delta, or they have none.
            events += self._open_item.add("", tokens)
        self._finish = delta.finish or self._finish
        return events

    def end(self, counts: TokenCounts, now: int) -> list[AnyResponseEvent]:
        """Return the last events; `now` is in seconds since 1970."""
        is_cut_off = self._finish == "length"
        has_only_reasoning = bool(self._closed_items or self._open_item)
        events: list[AnyResponseEvent] = []
        # An answer has a message, unless it was cut off while reasoning.
        if not self._has_message_or_call and not (is_cut_off and has_only_reasoning):
            events += self._open_message(self._blank_text, self._blank_tokens)
        events += self._close_open_item("incomplete" if is_cut_off else "completed")
        self.response = {
            **self.response,
            "status": "incomplete" if is_cut_off else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut_off else None,
            "completed_at": None if is_cut_off else now,
            "usage": shapes.usage(counts),
        }
        last = self._last_event("response.incomplete" if is_cut_off else "response.completed")
        return [*events, last]

    def fail(self, error: OmlxError) -> list[AnyResponseEvent]:
        """Return the events for an error; the output so far stays. Empty after the end."""
        if self.response["status"] != "in_progress":
            return []
        problem: Problem = {"code": error.code, "message": error.message, "param": error.param}
        # OpenAI's error event has these fields at its top; Open Responses has them in `error`.
        event: ResponseErrorEvent = {
            "type": "error",
            **problem,
            "error": {"type": error.kind, **problem},
            "sequence_number": next(self._sequence_numbers),
        }
        closed = self._close_open_item("incomplete")
        self.response = {**self.response, "status": "failed", "error": shapes.failure(error)}
        return [event, *closed, self._last_event("response.failed")]

    def _last_event(self, name: ResponseEventType) -> ResponseEvent:
        self.response = {**self.response, "output": self._closed_items}
        return self._response_event(name)

    def _response_event(self, name: ResponseEventType) -> ResponseEvent:
        number = next(self._sequence_numbers)
        return {"type": name, "response": self.response, "sequence_number": number}

    def _add_part(self, part: Part, tokens: tuple[LoggedToken, ...]) -> list[AnyResponseEvent]:
        match part:
            case Text():
                return self._add_text(part.text, tokens)
            case Thought():
                return self._add_reasoning(part.text)
            case CallStart():
                self._has_message_or_call = True
                return self._open_next_item(self._new_call(part))
            case Arguments():
                assert isinstance(self._open_item, OpenCall), "a call has begun"
                return self._open_item.add(part.fragment)

    def _new_call(self, part: CallStart) -> OpenItem:
        prompt_tool = self._names.find(part.name)
        tool = (prompt_tool.tool.name, prompt_tool.namespace) if prompt_tool else (part.name, None)
        is_custom = prompt_tool is not None and prompt_tool.is_custom
        reader = InputReader() if is_custom else None
        prefix = "ctc" if is_custom else "fc"
        return OpenCall(*self._next_item(prefix), call_id=part.id, tool=tool, reader=reader)

    def _add_text(self, text: str, tokens: tuple[LoggedToken, ...]) -> list[AnyResponseEvent]:
        if isinstance(self._open_item, OpenMessage):
            return self._open_item.add(text, tokens) if text or tokens else []
        self._blank_text += text
        self._blank_tokens += tokens
        if not self._blank_text.strip():
            return []
        return self._open_message(self._blank_text, self._blank_tokens)

    def _open_message(self, text: str, tokens: tuple[LoggedToken, ...]) -> list[AnyResponseEvent]:
        self._has_message_or_call = True
        message = OpenMessage(*self._next_item("msg"))
        events = self._open_next_item(message)
        return events + (message.add(text, tokens) if text or tokens else [])

    def _add_reasoning(self, text: str) -> list[AnyResponseEvent]:
        if not text:
            return []
        events: list[AnyResponseEvent] = []
        item = self._open_item
        if not isinstance(item, OpenReasoning):
            item = OpenReasoning(*self._next_item("rs"), sealed=self._seals_reasoning)
            events = self._open_next_item(item)
        return events + item.add(text)

    def _next_item(self, prefix: str) -> tuple[str, int, Iterator[int]]:
        """Return the next item's id and index, and what numbers its events."""
        index = len(self._closed_items) + (self._open_item is not None)
        return self._ids.next(prefix), index, self._sequence_numbers

    def _open_next_item(self, item: OpenItem) -> list[AnyResponseEvent]:
        events = self._close_open_item("completed")
        self._open_item = item
        self._blank_text, self._blank_tokens = "", ()
        return events + item.opening_events()

    def _close_open_item(self, status: ItemStatus) -> list[AnyResponseEvent]:
        if self._open_item is None:
            return []
        closed, self._open_item = self._open_item, None
        events = closed.closing_events(status)
        self._closed_items.append(closed.shape(status))
        return events
