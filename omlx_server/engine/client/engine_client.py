"""The mlx thread as asyncio sees it. Lives on the event loop's thread, never touches an array."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar, cast

from omlx_server.compute.hardware import heap
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.request import RequestId
from omlx_server.core.work import Work
from omlx_server.engine.memory.account import Account
from omlx_server.engine.messages import (
    Call,
    Counted,
    Failed,
    Inbound,
    LoadModel,
    ModelId,
    Outbound,
    Status,
    Stop,
    UnloadModel,
    Wake,
)
from omlx_server.engine.pulse import Pulse
from omlx_server.engine.thread import Engine
from omlx_server.errors import QueueFull, Unavailable

A = TypeVar("A")
Events = asyncio.Queue[Outbound]

_MAX_JOBS = 128


class AsyncEngine:
    """Sends messages to the mlx thread and routes its events to whoever waits for them.

    `on_failure` is called when the thread ends without having been told to. `closing` runs on it
    at the end, with the seconds that are left; `cold` reports there on the cold tier. `pulse` tells
    a long step from a thread that hangs.
    """

    def __init__(
        self,
        on_failure: Callable[[str], None],
        account: Account | None = None,
        closing: Callable[[float], None] = lambda seconds: None,
        cold: Callable[[], ColdReport | None] = lambda: None,
        pulse: Pulse | None = None,
    ) -> None:
        self._pulse = pulse or Pulse()
        self._engine = Engine(self._publish, lambda: self._preparing, account, closing, cold)
        self._preparing = 0
        self._jobs = 0
        self._ids = count(1)
        self._stopped = False
        self._on_failure = on_failure
        self._streams: dict[RequestId, Events] = {}
        self._failed: dict[ModelId, Callable[[str], None]] = {}
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._engine.start()
        self._watch = asyncio.create_task(self._watch_thread())

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """End the thread and wait for it; the cold tier may take so long to write."""
        self._stopped = True
        self._engine.inbox.put(Stop(drain_seconds))
        await asyncio.to_thread(self._engine.join)
        await self._watch

    # -- models --------------------------------------------------------------------------

    async def load(
        self, work: Work[Any], on_failure: Callable[[str], None], name: str = ""
    ) -> ModelId:
        """Make a model on the thread, in slices between the steps of others. `on_failure` is called
        should it crash again and again later. Raises what the work raises."""
        id = next(self._ids)
        await self.answered(lambda answer: LoadModel(id, work, answer, name))
        self._failed[id] = on_failure
        return id

    async def unload(self, id: ModelId, seconds: float = 0.0) -> None:
        """Give a model's memory back; the cold tier may take so long to take what it has kept."""
        self._failed.pop(id, None)
        await self.answered(lambda answer: UnloadModel(id, seconds, answer))

    def status(self, id: ModelId) -> Status | None:
        """None for a model that does not write, or is not loaded."""
        return self._engine.status(id)

    @property
    def memory(self) -> MemoryReport | None:
        """The account of all models, and what the process takes now; None where it is not
        watched."""
        report = self._engine.memory
        return report and replace(report, resident=heap.resident_bytes())

    @property
    def counted(self) -> dict[str, Counted]:
        """What models have counted by name, those that were unloaded as well."""
        return self._engine.counted

    @property
    def cold(self) -> ColdReport | None:
        """The cold tier of all models; None where there is none, or none yet."""
        return self._engine.cold

    def alive(self, now: float) -> bool:
        """Whether the thread turns, or is at work on a long step."""
        return self._engine.is_alive() and self._pulse.alive(self._engine.last_beat, now)

    async def call(self, act: Callable[[], A]) -> A:
        """Run something small on the thread that concerns all models, between two steps."""
        return cast(A, await self.answered(lambda answer: Call(act, answer)))

    # -- what models' clients ask --------------------------------------------------------

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Around the making and submitting of a request, so that an idle engine knows of it."""
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1

    def put(self, message: Inbound) -> None:
        """Raises Unavailable when nobody would read it."""
        if self._stopped or not self._engine.is_alive():
            raise Unavailable("the server is shutting down")
        self._engine.inbox.put(message)

    def wake(self) -> None:
        """The cold tier has something. Any thread."""
        self._engine.inbox.put(Wake())

    async def answered(self, message: Callable[[Future[Any]], Inbound]) -> Any:
        """Send a message and wait for the answer in its future."""
        answer: Future[Any] = Future()
        self.put(message(answer))
        return await asyncio.wrap_future(answer)

    async def job(self, message: Callable[[Future[Any]], Inbound]) -> Any:
        """The same for work that takes its time. Raises QueueFull when too much is waiting."""
        if self._jobs >= _MAX_JOBS:
            raise QueueFull(f"{self._jobs} jobs are waiting already", retry_after=1)
        self._jobs += 1
        try:
            return await self.answered(message)
        finally:
            self._jobs -= 1

    def follow(self, request_id: RequestId, events: Events) -> None:
        """Route the events of this request."""
        self._streams[request_id] = events

    def forget(self, request_id: RequestId) -> None:
        """Route no more events of this request."""
        self._streams.pop(request_id, None)

    @property
    def open_requests(self) -> int:
        return len(self._streams)

    # -- inside --------------------------------------------------------------------------

    def _publish(self, events: Sequence[Outbound]) -> None:
        """Called on the mlx thread: one hop to the loop per turn, not per token."""
        self._loop.call_soon_threadsafe(self._route, events)

    def _route(self, events: Sequence[Outbound]) -> None:
        for event in events:
            if isinstance(event, Failed):
                self._failed.pop(event.model, _nobody)(event.problem)
                continue
            stream = self._streams.get(event.request_id)
            if stream is not None:
                stream.put_nowait(event)

    async def _watch_thread(self) -> None:
        await asyncio.to_thread(self._engine.join)
        if not self._stopped:
            self._on_failure("the engine thread ended")


def _nobody(problem: str) -> None:
    """Its model was unloaded meanwhile."""
