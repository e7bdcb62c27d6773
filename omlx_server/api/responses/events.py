"""A response in the making: what the model says, as events in OpenAI's order. Pure.

    created, in_progress, (an item's events)*, completed | incomplete | failed

One item is open at a time. Each event has the next sequence number, from 0 on, and the last one
carries the whole response, which is also the answer to a client that does not stream.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from omlx_server.api.choices import ChoiceDelta, LoggedToken, Usage
from omlx_server.api.responses import shapes
from omlx_server.api.responses.ids import ItemIds
from omlx_server.api.responses.items import ItemJson
from omlx_server.api.responses.open_items import (
    Event,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)
from omlx_server.core.request import FinishReason
from omlx_server.errors import OmlxError
from omlx_server.text.parts import Arguments, CallStart, Part, Reasoning, Text


def as_bytes(events: Sequence[Event]) -> bytes:
    """As server-sent events. The type stands in each twice: some clients read only the one."""
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"
        for event in events
    )


class Progress:
    """`opening` is the response before anything has come."""

    def __init__(self, opening: dict[str, Any], ids: ItemIds, *, seals_reasoning: bool) -> None:
        self.response = opening
        self._ids = ids
        self._seals_reasoning = seals_reasoning
        self._number = 0
        self._open: OpenItem | None = None
        self._done: list[ItemJson] = []
        # Blank text is no message, unless more follows or it is all there is.
        self._blank = ""
        self._blank_tokens: tuple[LoggedToken, ...] = ()
        self._answered = False
        self._finish: str | None = None
        self._ended = False

    def begin(self) -> list[Event]:
        names = ("response.created", "response.in_progress")
        return self._numbered([{"type": name, "response": self.response} for name in names])

    def take(self, delta: ChoiceDelta) -> list[Event]:
        """What it added. Its tokens belong to its first text."""
        tokens, events = delta.tokens, []
        for part in delta.parts:
            events += self._take(part, tokens)
            tokens = () if isinstance(part, Text) else tokens
        if tokens and not any(isinstance(part, Text) for part in delta.parts):
            events += self._log(tokens)
        self._finish = delta.finish or self._finish
        return self._numbered(events)

    def end(self, counts: Usage, now: int) -> list[Event]:
        """The model has finished."""
        cut = self._finish == FinishReason.LENGTH
        events = []
        if not self._answered and not (cut and (self._done or self._open)):
            events += self._say(self._blank, self._blank_tokens)
        events += self._close("incomplete" if cut else "completed")
        status = "incomplete" if cut else "completed"
        ending = {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else now,
            "usage": shapes.usage(counts),
        }
        return self._numbered([*events, self._last(status, ending)])

    def fail(self, error: OmlxError) -> list[Event]:
        """It breaks off. What has come stays; nothing follows what has ended already."""
        if self._ended:
            return []
        told = {"code": error.code, "message": error.message, "param": error.param}
        # OpenAI's event has these fields, that of Open Responses an object of them.
        whole = {**told, "error": {"type": error.kind, **told}}
        events = [{"type": "error", **whole}, *self._close("incomplete")]
        ending = {"status": "failed", "error": shapes.failure(error)}
        return self._numbered([*events, self._last("failed", ending)])

    def _last(self, status: str, ending: dict[str, Any]) -> Event:
        self._ended = True
        self.response = {**self.response, **ending, "output": self._done}
        return {"type": f"response.{status}", "response": self.response}

    def _take(self, part: Part, tokens: tuple[LoggedToken, ...]) -> list[Event]:
        match part:
            case Text():
                return self._text(part.text, tokens)
            case Reasoning():
                return self._reason(part.text)
            case CallStart():
                self._answered = True
                call = OpenCall(self._ids.next("fc"), self._next_index(), part.id, part.name)
                return self._switch(call)
            case Arguments():
                assert isinstance(self._open, OpenCall), "arguments follow the start of their call"
                return self._open.more(part.fragment)

    def _text(self, text: str, tokens: tuple[LoggedToken, ...]) -> list[Event]:
        if isinstance(self._open, OpenMessage):
            return self._open.more(text, tokens) if text or tokens else []
        self._blank += text
        self._blank_tokens += tokens
        if not self._blank.strip():
            return []
        return self._say(self._blank, self._blank_tokens)

    def _say(self, text: str, tokens: tuple[LoggedToken, ...]) -> list[Event]:
        self._answered = True
        message = OpenMessage(self._ids.next("msg"), self._next_index())
        events = self._switch(message)
        return events + (message.more(text, tokens) if text or tokens else [])

    def _reason(self, text: str) -> list[Event]:
        if not text:
            return []
        events: list[Event] = []
        item = self._open
        if not isinstance(item, OpenReasoning):
            sealed = self._seals_reasoning
            item = OpenReasoning(self._ids.next("rs"), self._next_index(), sealed=sealed)
            events = self._switch(item)
        return events + item.more(text)

    def _log(self, tokens: tuple[LoggedToken, ...]) -> list[Event]:
        """Tokens whose text came before, or is none."""
        return self._open.more("", tokens) if isinstance(self._open, OpenMessage) else []

    def _next_index(self) -> int:
        return len(self._done) + (self._open is not None)

    def _switch(self, item: OpenItem) -> list[Event]:
        """Close what is open, and open another item."""
        events = self._close("completed")
        self._open = item
        self._blank, self._blank_tokens = "", ()
        return events + item.opening()

    def _close(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        closed, self._open = self._open, None
        self._done.append(closed.shape(status))
        return closed.closing(status)

    def _numbered(self, events: list[Event]) -> list[Event]:
        first = self._number
        self._number += len(events)
        return [{**event, "sequence_number": first + i} for i, event in enumerate(events)]
