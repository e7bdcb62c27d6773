"""The engine as asyncio sees it. Lives on the event loop's thread and never touches an array.

A Generation must be closed (`async with`): closing an unfinished one cancels it, which takes
effect within a step.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TypeVar, cast

from omlx_server.compute.score import score_prompt
from omlx_server.core.request import (
    Admission,
    FinishReason,
    Logprobs,
    Miss,
    Rejected,
    Request,
    RequestId,
    TokenEvent,
)
from omlx_server.engine.engine import Engine
from omlx_server.engine.jobs import Work
from omlx_server.engine.lane import Lane
from omlx_server.engine.messages import (
    Accepted,
    Ask,
    Cancel,
    Outbound,
    Start,
    State,
    Status,
    Stop,
    Submit,
)
from omlx_server.errors import DeadlineExceeded, InternalError, NoMemory, QueueFull, Unavailable

A = TypeVar("A")

_MAX_JOBS = 128


class AsyncEngine:
    """Submits requests to the mlx thread and routes its events to whoever waits for them."""

    def __init__(self, load: Callable[[], Lane], on_failure: Callable[[str], None]) -> None:
        self._engine = Engine(load, self._publish, lambda: self._preparing)
        self._preparing = 0
        self._jobs = 0
        self._on_failure = on_failure
        self._streams: dict[RequestId, asyncio.Queue[Outbound]] = {}
        self._loop: asyncio.AbstractEventLoop

    @property
    def status(self) -> Status:
        return self._engine.status

    async def start(self) -> None:
        """Start the thread; returns at once, `ready` tells when the model is loaded."""
        self._loop = asyncio.get_running_loop()
        self._engine.start()
        self._watch = asyncio.create_task(self._watch_thread())

    async def ready(self) -> None:
        """Wait until the model is loaded and warm.

        Raises:
            Unavailable: it could not be started.
        """
        while self.status.state is State.STARTING:
            await asyncio.sleep(0.02)
        if self.status.state is not State.READY:
            raise Unavailable(self.status.problem)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Around the making and submitting of a request, so that an idle engine knows of it."""
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1

    async def submit(self, request: Request) -> "Generation":
        """Queue a request. Its first event is awaited here, so a refusal precedes any answer.

        Raises:
            QueueFull: too many requests are waiting.
            NoMemory: it would not fit even if nobody else were served.
            Unavailable: the engine is not running.
        """
        self._check_ready()
        generation = Generation(self, request)
        self._streams[request.id] = generation.events
        self._engine.inbox.put(Submit(request))
        with ExitStack() as undo:
            undo.callback(generation.close)
            await generation.accepted()
            undo.pop_all()
        return generation

    def cancel(self, request_id: RequestId, index: int | None = None) -> None:
        """Stop computing a request, or one of its choices. No event follows."""
        self._engine.inbox.put(Cancel(request_id, index))

    async def ask(self, question: Callable[[Lane], A]) -> A:
        """Run something small on the mlx thread, between two steps.

        Raises:
            Unavailable: the engine is not running.
        """
        self._check_ready()
        answer: Future[object] = Future()
        self._engine.inbox.put(Ask(question, answer))
        return cast(A, await asyncio.wrap_future(answer))

    async def work(self, make: Callable[[Lane], Work[A]]) -> A:
        """Do a job on the mlx thread, in slices between steps. Cancelling ends it within a slice.

        Raises:
            QueueFull: too many jobs are waiting.
            Unavailable: the engine is not running.
        """
        self._check_ready()
        if self._jobs >= _MAX_JOBS:
            raise QueueFull(f"{self._jobs} jobs are waiting already", retry_after=1)
        answer: Future[object] = Future()
        self._jobs += 1
        try:
            self._engine.inbox.put(Start(make, answer))
            return cast(A, await asyncio.wrap_future(answer))
        finally:
            self._jobs -= 1

    async def score(self, tokens: Sequence[int], top: int) -> list[Logprobs]:
        """The log-probabilities of a prompt's own tokens but the first, with the `top` likeliest.
        Raises as `work`."""

        def make(lane: Lane) -> Work[list[Logprobs]]:
            loaded = lane.runner.loaded
            return score_prompt(loaded.model, loaded.dims.vocab, tokens, top)

        return await self.work(make)

    def forget(self, request_id: RequestId) -> None:
        """Route no more events of this request."""
        self._streams.pop(request_id, None)

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """End the thread and wait for it; the cold tier may take so long to write."""
        self._engine.inbox.put(Stop(drain_seconds))
        await asyncio.to_thread(self._engine.join)
        await self._watch

    @property
    def open_requests(self) -> int:
        return len(self._streams)

    def _check_ready(self) -> None:
        if self.status.state is not State.READY:
            raise Unavailable(self.status.problem or "the model is still being loaded")

    def _publish(self, events: Sequence[Outbound]) -> None:
        """Called on the mlx thread: one hop to the loop per turn, not per token."""
        self._loop.call_soon_threadsafe(self._route, events)

    def _route(self, events: Sequence[Outbound]) -> None:
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is not None:
                stream.put_nowait(event)

    async def _watch_thread(self) -> None:
        await asyncio.to_thread(self._engine.join)
        if self.status.state is not State.STOPPED:
            self._on_failure(self.status.problem or "the engine thread ended")


class Generation:
    """The token events of one request, until each of its choices has ended."""

    def __init__(self, engine: AsyncEngine, request: Request) -> None:
        self.request = request
        self.events: asyncio.Queue[Outbound] = asyncio.Queue()
        self._engine = engine
        self._open = set(range(request.n))
        self.admission: Admission | None = None
        self.admitted_at = 0.0
        self._closed = False

    async def accepted(self) -> None:
        """Wait for the scheduler's word. Raises QueueFull or what ended the request."""
        match await self.events.get():
            case Accepted():
                return
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
            self._engine.cancel(self.request.id, index)

    def close(self) -> None:
        """Cancel what is unfinished. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._open:
                self._engine.cancel(self.request.id)
            self._engine.forget(self.request.id)

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        while self._open:
            event = await self.events.get()
            if isinstance(event, Admission):
                self.admitted_at = self.admitted_at or now()
                self.admission = _first_true(self.admission, event)
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
