"""The token events of one request. Lives on the event loop's thread.

A Generation must be closed (`async with`): closing an unfinished one cancels it, which takes
effect within a step.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol

from omlx_server.core.request import (
    Admission,
    FinishReason,
    Miss,
    Rejected,
    Request,
    RequestId,
    Restored,
    TokenEvent,
)
from omlx_server.engine.messages import Accepted, Outbound
from omlx_server.errors import (
    DeadlineExceeded,
    GrammarTooComplex,
    InternalError,
    NoMemory,
    QueueFull,
)


class Source(Protocol):
    """Whoever computes the request."""

    def cancel(self, request_id: RequestId, index: int | None = None) -> None:
        """Stop computing it, or one of its choices."""
        ...

    def forget(self, request_id: RequestId) -> None:
        """Route no more events of it."""
        ...


class Generation:
    """The token events of one request, until each of its choices has ended."""

    def __init__(self, source: Source, request: Request) -> None:
        self.request = request
        self.events: asyncio.Queue[Outbound] = asyncio.Queue()
        self._source = source
        self._open = set(range(request.n))
        self.admission: Admission | None = None
        self.admitted_at = 0.0
        self.restored: Restored | None = None
        self.within = 0.0
        """Seconds until the first token, at most: see `Accepted`."""
        self._closed = False

    async def accepted(self) -> None:
        """Wait for the scheduler's word. Raises QueueFull or what ended the request."""
        match await self.events.get():
            case Accepted(_, within):
                self.within = within
            case Rejected(_, waiting, retry_after, no_room):
                self._open.clear()
                if no_room:
                    raise NoMemory(no_room)
                raise QueueFull(
                    f"{waiting} requests are waiting already; try again in {retry_after} s",
                    retry_after=retry_after,
                )
            case TokenEvent() as event:
                self._raise_if_failed(event)

    def stop_choice(self, index: int) -> None:
        """End one choice whose text met a stop string; tokens under way are passed over."""
        if index in self._open:
            self._open.discard(index)
            self._source.cancel(self.request.id, index)

    def close(self) -> None:
        """Cancel what is unfinished. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._open:
                self._source.cancel(self.request.id)
            self._source.forget(self.request.id)

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        while self._open:
            event = await self.events.get()
            if isinstance(event, Admission):
                self.admitted_at = self.admitted_at or now()
                self.admission = _first_true(self.admission, event)
            if isinstance(event, Restored):
                self.restored = self.restored or event
            if isinstance(event, TokenEvent) and event.index in self._open:
                if event.finish:
                    self._open.discard(event.index)
                self._raise_if_failed(event)
                yield event

    async def __aenter__(self) -> "Generation":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _raise_if_failed(self, event: TokenEvent) -> None:
        if event.finish is FinishReason.ERROR:
            raise InternalError(f"the request failed: {event.error}")
        if event.finish is FinishReason.GRAMMAR:
            raise GrammarTooComplex(event.error)
        if event.finish is FinishReason.MEMORY:
            raise NoMemory(event.error)
        if event.finish is FinishReason.DEADLINE:
            raise DeadlineExceeded("the request did not finish within its time limit")


def _first_true(known: Admission | None, new: Admission) -> Admission:
    """The first one counts, unless what it promised could not be read."""
    return new if known is None or new.miss is Miss.UNREADABLE else known


def now() -> float:
    """The clock of requests' `arrived` and `deadline`."""
    return time.monotonic()
