"""Turns the deltas of an answer into a response, and into events in OpenAI's order. Pure.

    created, in_progress, (an item's events)*, completed | incomplete | failed

One item is open at a time. The last event carries the whole response.
"""

from collections.abc import Iterator
from itertools import count

from omlx_server.api.chat.choices import ChoiceDelta, LoggedToken, TokenCounts
from omlx_server.api.chat.finish import Finish
from omlx_server.api.chat.tools import InputReader
from omlx_server.api.responses import shapes
from omlx_server.api.responses.answers import ItemStatus, OutputItem, Response
from omlx_server.api.responses.event_types import (
    AnyResponseEvent,
    Problem,
    ResponseErrorEvent,
    ResponseEvent,
    ResponseEventType,
)
from omlx_server.api.responses.items.items import ItemIds
from omlx_server.api.responses.open_items import OpenCall, OpenItem, OpenMessage, OpenReasoning
from omlx_server.api.responses.tool_names import ToolNames
from omlx_server.errors import OmlxError
from omlx_server.text.parts import Arguments, CallStart, Part, Text, Thought


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
        is_cut_in_reasoning = is_cut_off and bool(self._closed_items or self._open_item)
        events: list[AnyResponseEvent] = []
        if not self._has_message_or_call and not is_cut_in_reasoning:
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
