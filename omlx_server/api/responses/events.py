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
    """Makes the events of one response: call `begin`, `take` for each delta, then `end` or `fail`.
    `response` is its current state."""

    def __init__(
        self, opening: Response, ids: ItemIds, names: ToolNames, *, seals_reasoning: bool
    ) -> None:
        self.response = opening
        self._names = names
        self._ids = ids
        self._seals_reasoning = seals_reasoning
        self._numbers = count()
        self._open: OpenItem | None = None
        self._done: list[OutputItem] = []
        # Blank text becomes a message only if more follows or nothing else comes.
        self._blank = ""
        self._blank_tokens: tuple[LoggedToken, ...] = ()
        self._answered = False
        self._finish: Finish | None = None

    def begin(self) -> list[AnyResponseEvent]:
        return [
            self._response_event("response.created"),
            self._response_event("response.in_progress"),
        ]

    def take(self, delta: ChoiceDelta) -> list[AnyResponseEvent]:
        """Return the events for a delta. Its tokens go with its first text."""
        tokens = delta.tokens
        events: list[AnyResponseEvent] = []
        for part in delta.parts:
            events += self._take(part, tokens)
            tokens = () if isinstance(part, Text) else tokens
        if tokens and not any(isinstance(part, Text) for part in delta.parts):
            # The text of these tokens came with an earlier delta, or they have none.
            events += self._open.more("", tokens) if isinstance(self._open, OpenMessage) else []
        self._finish = delta.finish or self._finish
        return events

    def end(self, counts: TokenCounts, now: int) -> list[AnyResponseEvent]:
        """Return the last events; `now` is in seconds since 1970."""
        cut = self._finish == "length"
        events: list[AnyResponseEvent] = []
        if not self._answered and not (cut and (self._done or self._open)):
            events += self._open_message(self._blank, self._blank_tokens)
        events += self._close("incomplete" if cut else "completed")
        self.response = {
            **self.response,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else now,
            "usage": shapes.usage(counts),
        }
        return [*events, self._last_event("response.incomplete" if cut else "response.completed")]

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
            "sequence_number": next(self._numbers),
        }
        closed = self._close("incomplete")
        self.response = {**self.response, "status": "failed", "error": shapes.failure(error)}
        return [event, *closed, self._last_event("response.failed")]

    def _last_event(self, name: ResponseEventType) -> ResponseEvent:
        self.response = {**self.response, "output": self._done}
        return self._response_event(name)

    def _response_event(self, name: ResponseEventType) -> ResponseEvent:
        number = next(self._numbers)
        return {"type": name, "response": self.response, "sequence_number": number}

    def _take(self, part: Part, tokens: tuple[LoggedToken, ...]) -> list[AnyResponseEvent]:
        match part:
            case Text():
                return self._text(part.text, tokens)
            case Thought():
                return self._reason(part.text)
            case CallStart():
                self._answered = True
                return self._switch(self._opened_call(part))
            case Arguments():
                assert isinstance(self._open, OpenCall), "a call has begun"
                return self._open.more(part.fragment)

    def _opened_call(self, part: CallStart) -> OpenItem:
        named = self._names.tool(part.name)
        tool = (named.tool.name, named.namespace) if named else (part.name, None)
        is_custom = named is not None and named.is_custom
        reader = InputReader() if is_custom else None
        prefix = "ctc" if is_custom else "fc"
        return OpenCall(*self._next(prefix), call_id=part.id, tool=tool, reader=reader)

    def _text(self, text: str, tokens: tuple[LoggedToken, ...]) -> list[AnyResponseEvent]:
        if isinstance(self._open, OpenMessage):
            return self._open.more(text, tokens) if text or tokens else []
        self._blank += text
        self._blank_tokens += tokens
        if not self._blank.strip():
            return []
        return self._open_message(self._blank, self._blank_tokens)

    def _open_message(self, text: str, tokens: tuple[LoggedToken, ...]) -> list[AnyResponseEvent]:
        self._answered = True
        message = OpenMessage(*self._next("msg"))
        events = self._switch(message)
        return events + (message.more(text, tokens) if text or tokens else [])

    def _reason(self, text: str) -> list[AnyResponseEvent]:
        if not text:
            return []
        events: list[AnyResponseEvent] = []
        item = self._open
        if not isinstance(item, OpenReasoning):
            item = OpenReasoning(*self._next("rs"), sealed=self._seals_reasoning)
            events = self._switch(item)
        return events + item.more(text)

    def _next(self, prefix: str) -> tuple[str, int, Iterator[int]]:
        index = len(self._done) + (self._open is not None)
        return self._ids.next(prefix), index, self._numbers

    def _switch(self, item: OpenItem) -> list[AnyResponseEvent]:
        events = self._close("completed")
        self._open = item
        self._blank, self._blank_tokens = "", ()
        return events + item.opening()

    def _close(self, status: ItemStatus) -> list[AnyResponseEvent]:
        if self._open is None:
            return []
        closed, self._open = self._open, None
        events = closed.closing(status)
        self._done.append(closed.shape(status))
        return events
