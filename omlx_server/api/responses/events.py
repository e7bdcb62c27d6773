"""A response in the making: what the model says, as events in OpenAI's order. Pure.

    created, in_progress, (an item's events)*, completed | incomplete | failed

One item is open at a time. Each event has the next sequence number, from 0 on, and the last one
carries the whole response, which is also the answer to a client that does not stream.
"""

from collections.abc import Sequence
from itertools import count

import orjson

from omlx_server.api.chat.choices import ChoiceDelta, LoggedToken, Usage
from omlx_server.api.chat.finish import Finish
from omlx_server.api.responses import shapes
from omlx_server.api.responses.answers import ItemStatus, OutputItem, Response
from omlx_server.api.responses.event_types import (
    AnyResponseEvent,
    Problem,
    ResponseErrorEvent,
    ResponseEvent,
    ResponseEventType,
)
from omlx_server.api.responses.items.ids import ItemIds
from omlx_server.api.responses.open_items import OpenCall, OpenItem, OpenMessage, OpenReasoning
from omlx_server.errors import OmlxError
from omlx_server.text.parts import Arguments, CallStart, Part, Reasoning, Text


def as_bytes(events: Sequence[AnyResponseEvent]) -> bytes:
    """As server-sent events. The type stands in each twice: some clients read only the one."""
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"
        for event in events
    )


class Progress:
    """`opening` is the response before anything has come."""

    def __init__(self, opening: Response, ids: ItemIds, *, seals_reasoning: bool) -> None:
        self.response = opening
        self._ids = ids
        self._seals_reasoning = seals_reasoning
        self._numbers = count()
        self._open: OpenItem | None = None
        self._done: list[OutputItem] = []
        # Blank text is no message, unless more follows or it is all there is.
        self._blank = ""
        self._blank_tokens: tuple[LoggedToken, ...] = ()
        self._answered = False
        self._finish: Finish | None = None
        self._ended = False

    def begin(self) -> list[AnyResponseEvent]:
        return [self._told("response.created"), self._told("response.in_progress")]

    def take(self, delta: ChoiceDelta) -> list[AnyResponseEvent]:
        """What it added. Its tokens belong to its first text."""
        tokens = delta.tokens
        events: list[AnyResponseEvent] = []
        for part in delta.parts:
            events += self._take(part, tokens)
            tokens = () if isinstance(part, Text) else tokens
        if tokens and not any(isinstance(part, Text) for part in delta.parts):
            events += self._log(tokens)
        self._finish = delta.finish or self._finish
        return events

    def end(self, counts: Usage, now: int) -> list[AnyResponseEvent]:
        """The model has finished."""
        cut = self._finish == "length"
        events: list[AnyResponseEvent] = []
        if not self._answered and not (cut and (self._done or self._open)):
            events += self._say(self._blank, self._blank_tokens)
        events += self._close("incomplete" if cut else "completed")
        self.response = {
            **self.response,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else now,
            "usage": shapes.usage(counts),
        }
        return [*events, self._last("response.incomplete" if cut else "response.completed")]

    def fail(self, error: OmlxError) -> list[AnyResponseEvent]:
        """It breaks off. What has come stays; nothing follows what has ended already."""
        if self._ended:
            return []
        problem: Problem = {"code": error.code, "message": error.message, "param": error.param}
        # OpenAI's event has these fields, that of Open Responses an object of them.
        event: ResponseErrorEvent = {
            "type": "error",
            **problem,
            "error": {"type": error.kind, **problem},
            "sequence_number": next(self._numbers),
        }
        closed = self._close("incomplete")
        self.response = {**self.response, "status": "failed", "error": shapes.failure(error)}
        return [event, *closed, self._last("response.failed")]

    def _last(self, name: ResponseEventType) -> ResponseEvent:
        self._ended = True
        self.response = {**self.response, "output": self._done}
        return self._told(name)

    def _told(self, name: ResponseEventType) -> ResponseEvent:
        number = next(self._numbers)
        return {"type": name, "response": self.response, "sequence_number": number}

    def _take(self, part: Part, tokens: tuple[LoggedToken, ...]) -> list[AnyResponseEvent]:
        match part:
            case Text():
                return self._text(part.text, tokens)
            case Reasoning():
                return self._reason(part.text)
            case CallStart():
                self._answered = True
                id, index = self._ids.next("fc"), self._next_index()
                call = OpenCall(id, index, self._numbers, call_id=part.id, name=part.name)
                return self._switch(call)
            case Arguments():
                assert isinstance(self._open, OpenCall), "arguments follow the start of their call"
                return self._open.more(part.fragment)

    def _text(self, text: str, tokens: tuple[LoggedToken, ...]) -> list[AnyResponseEvent]:
        if isinstance(self._open, OpenMessage):
            return self._open.more(text, tokens) if text or tokens else []
        self._blank += text
        self._blank_tokens += tokens
        if not self._blank.strip():
            return []
        return self._say(self._blank, self._blank_tokens)

    def _say(self, text: str, tokens: tuple[LoggedToken, ...]) -> list[AnyResponseEvent]:
        self._answered = True
        message = OpenMessage(self._ids.next("msg"), self._next_index(), self._numbers)
        events = self._switch(message)
        return events + (message.more(text, tokens) if text or tokens else [])

    def _reason(self, text: str) -> list[AnyResponseEvent]:
        if not text:
            return []
        events: list[AnyResponseEvent] = []
        item = self._open
        if not isinstance(item, OpenReasoning):
            id, index = self._ids.next("rs"), self._next_index()
            item = OpenReasoning(id, index, self._numbers, sealed=self._seals_reasoning)
            events = self._switch(item)
        return events + item.more(text)

    def _log(self, tokens: tuple[LoggedToken, ...]) -> list[AnyResponseEvent]:
        """Tokens whose text came before, or is none."""
        return self._open.more("", tokens) if isinstance(self._open, OpenMessage) else []

    def _next_index(self) -> int:
        return len(self._done) + (self._open is not None)

    def _switch(self, item: OpenItem) -> list[AnyResponseEvent]:
        """Close what is open, and open another item."""
        events = self._close("completed")
        self._open = item
        self._blank, self._blank_tokens = "", ()
        return events + item.opening()

    def _close(self, status: ItemStatus) -> list[AnyResponseEvent]:
        if self._open is None:
            return []
        closed, self._open = self._open, None
        self._done.append(closed.shape(status))
        return closed.closing(status)
