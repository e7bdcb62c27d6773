"""Token events of one request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from omlx_server import clock
from omlx_server.core.request import (
    Admitted,
    FinishReason,
    Miss,
    Rejected,
    Request,
    Restored,
    TokenEvent,
)
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.messages import Accepted, Cancel, ModelId, Outbound
from omlx_server.errors import (
    DeadlineExceeded,
    GrammarTooComplex,
    InternalError,
    ModelError,
    NoMemory,
    OmlxError,
    QueueFull,
    Unavailable,
)

_FAILURES = (
    FinishReason.ERROR,
    FinishReason.GRAMMAR,
    FinishReason.MEMORY,
    FinishReason.DEADLINE,
    FinishReason.MODEL_ERROR,
)


class Generation:
    """The events of one request. Closing it (`async with`) cancels an unfinished one."""

    def __init__(self, engine: AsyncEngine, model: ModelId, request: Request) -> None:
        self.request = request
        self.mailbox: asyncio.Queue[Outbound] = asyncio.Queue()
        self._engine = engine
        self._model = model
        self._open_choices = set(range(request.n))
        self.admitted: Admitted | None = None
        self.admitted_at = 0.0
        self.restored: Restored | None = None
        self.longest_wait = 0.0  # seconds to the first token; 0: unknown
        self._closed = False

    async def wait_until_accepted(self) -> None:
        """Wait until the request is accepted. Raises why it was refused or ended."""
        match await self.mailbox.get():
            case Accepted(_, longest_wait):
                self.longest_wait = longest_wait
            case Rejected(_, waiting, retry_after, no_room):
                self._open_choices.clear()
                if no_room:
                    raise NoMemory(no_room)
                raise QueueFull(
                    f"{waiting} requests are waiting already; try again in {retry_after} s",
                    retry_after=retry_after,
                )
            case TokenEvent() as event if event.finish in _FAILURES:
                raise _error_of(event)

    def stop_choice(self, index: int) -> None:
        if index in self._open_choices:
            self._open_choices.discard(index)
            self._cancel(index)

    def close(self) -> None:
        """Cancel all open choices. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._open_choices:
                self._cancel()
            self._engine.stop_routing(self.request.id)

    async def __aiter__(self) -> AsyncIterator[list[TokenEvent]]:
        """Yield lists of simultaneous events of open choices."""
        while self._open_choices:
            batch: list[TokenEvent] = []
            events = [await self.mailbox.get()]
            while not self.mailbox.empty():
                events.append(self.mailbox.get_nowait())
            for event in events:
                if not isinstance(event, TokenEvent):
                    self._note_admission(event)
                    continue
                if batch and event.finish in _FAILURES:
                    # A stop string in these may end the choice before its failure counts.
                    yield batch
                    batch = []
                if event.index in self._open_choices:
                    if event.finish in _FAILURES:
                        raise _error_of(event)
                    if event.finish is not None:
                        self._open_choices.discard(event.index)
                    batch.append(event)
            if batch:
                yield batch

    async def __aenter__(self) -> "Generation":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _cancel(self, index: int | None = None) -> None:
        with suppress(Unavailable):  # then it has ended already
            self._engine.put(Cancel(self._model, self.request.id, index))

    def _note_admission(self, event: Outbound) -> None:
        if isinstance(event, Admitted):
            self.admitted_at = self.admitted_at or clock.now()
            if self.admitted is None or event.miss is Miss.UNREADABLE:
                self.admitted = event
        if isinstance(event, Restored):
            self.restored = self.restored or event


def _error_of(event: TokenEvent) -> OmlxError:
    match event.finish:
        case FinishReason.GRAMMAR:
            return GrammarTooComplex(event.error)
        case FinishReason.MEMORY:
            return NoMemory(event.error)
        case FinishReason.MODEL_ERROR:
            return ModelError(
                "the model's logits are not finite (NaN), so this answer ends here: if it happens "
                "again, the model's files or this MLX are faulty (docs/trouble.md)"
            )
        case FinishReason.DEADLINE:
            return DeadlineExceeded("the request did not finish within its time limit")
    return InternalError(f"the request failed: {event.error}")
