"""The client of the mlx thread. It never touches an array."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast

from omlx_server.compute.hardware import heap
from omlx_server.core.clients import CLIENT, may_wait
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.request import FinishReason, RequestId, TokenEvent
from omlx_server.core.work import Work
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.messages import (
    Counted,
    EngineCall,
    Failed,
    Inbound,
    LoadModel,
    ModelId,
    Outbound,
    StartJob,
    Status,
    Stop,
    UnloadModel,
    Wake,
)
from omlx_server.engine.pulse import Pulse
from omlx_server.engine.thread import Engine
from omlx_server.errors import QueueFull, Unavailable

A = TypeVar("A")

_MAX_JOBS = 128


class AsyncEngine:
    """Sends messages to the mlx thread and routes its events."""

    def __init__(
        self,
        on_failure: Callable[[str], None],
        account: MemoryAccount | None = None,
        close_cold_tier: Callable[[float], None] = lambda seconds: None,
        report_cold: Callable[[], ColdReport | None] = lambda: None,
    ) -> None:
        self.pulse = Pulse()
        self._engine = Engine(
            self._publish, lambda: self._preparing_requests, account, close_cold_tier, report_cold
        )
        self._preparing_requests = 0
        self._jobs = Counter[bytes]()  # running, by client
        self._model_ids = count(1)
        self._stopped = False
        self._on_failure = on_failure
        # The mailbox of each request's events, and the number of its choices.
        self._mailboxes: dict[RequestId, tuple[asyncio.Queue[Outbound], int]] = {}
        self._on_model_failure: dict[ModelId, Callable[[str], None]] = {}
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine.start()
        self._watch = asyncio.create_task(self._watch_thread())

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """End the thread, after writes to the cold tier of at most `drain_seconds`."""
        self._stopped = True
        self._engine.inbox.put(Stop(drain_seconds))
        await asyncio.to_thread(self._engine.join)
        await self._watch

    async def load(
        self, work: Work[Any], on_failure: Callable[[str], None], name: str = ""
    ) -> ModelId:
        """Load a model in slices. `on_failure` is told if it fails later. Raises as `work`."""
        id = next(self._model_ids)
        await self._send_and_wait(lambda answer: LoadModel(id, work, answer, name))
        self._on_model_failure[id] = on_failure
        return id

    async def unload(self, id: ModelId, seconds: float = 0.0) -> None:
        self._on_model_failure.pop(id, None)
        await self._send_and_wait(lambda answer: UnloadModel(id, seconds, answer))

    def status(self, id: ModelId) -> Status | None:
        return self._engine.status(id)

    @property
    def memory(self) -> MemoryReport | None:
        report = self._engine.memory
        return report and replace(report, resident=heap.resident_bytes())

    @property
    def counted(self) -> dict[str, Counted]:
        return self._engine.census.counted

    @property
    def device_errors(self) -> Mapping[str, int]:
        """Return how often the device failed, by class."""
        return {fault.value: count for fault, count in self._engine.faults.counts.items()}

    @property
    def cold(self) -> ColdReport | None:
        return self._engine.cold

    def alive(self, now: float) -> bool:
        """Return whether the thread is not stuck. `now` is clock.now()."""
        return self._engine.is_alive() and self.pulse.alive(self._engine.last_beat, now)

    async def call(self, act: Callable[[], A]) -> A:
        return cast(A, await self._send_and_wait(lambda answer: EngineCall(act, answer)))

    async def ask(self, id: ModelId, question: Callable[[Any], A]) -> A:
        """Run a short function on the thread. Raises Unavailable, and what `question` raises."""
        return await self.call(lambda: question(self._engine.model(id)))

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Announce a request: an idle engine waits some milliseconds for it."""
        self._preparing_requests += 1
        try:
            yield
        finally:
            self._preparing_requests -= 1

    def put(self, message: Inbound) -> None:
        """Raises Unavailable when the thread has ended."""
        if self._stopped or not self._engine.is_alive():
            raise Unavailable("the server is shutting down")
        self._engine.inbox.put(message)

    def wake(self) -> None:
        self._engine.inbox.put(Wake())

    async def _send_and_wait(self, make_message: Callable[[Future[Any]], Inbound]) -> Any:
        answer: Future[Any] = Future()
        self.put(make_message(answer))
        return await asyncio.wrap_future(answer)

    async def run_job(self, id: ModelId, make_work: Callable[[Any], Work[object]]) -> Any:
        """Run a job of the current client. Raises QueueFull."""
        client, jobs = CLIENT.get(), self._jobs
        if not may_wait(jobs, client, _MAX_JOBS):
            raise QueueFull(f"{jobs.total()} jobs are waiting already", retry_after=1)
        jobs[client] += 1
        try:
            return await self._send_and_wait(partial(StartJob, id, make_work, client))
        finally:
            jobs -= Counter([client])  # in place; drops zeros

    def route_events(self, id: RequestId, mailbox: asyncio.Queue[Outbound], choices: int) -> None:
        self._mailboxes[id] = mailbox, choices

    def stop_routing(self, request_id: RequestId) -> None:
        self._mailboxes.pop(request_id, None)

    def fail_everything(self, problem: str) -> None:
        """End all requests and models while the thread hangs on a lost rank."""
        for request_id, (mailbox, choices) in self._mailboxes.items():
            for index in range(choices):
                event = TokenEvent(request_id, index, finish=FinishReason.ERROR, error=problem)
                mailbox.put_nowait(event)
        callbacks, self._on_model_failure = self._on_model_failure, {}
        for on_failure in callbacks.values():
            on_failure(problem)

    def _publish(self, events: Sequence[Outbound]) -> None:
        self._loop.call_soon_threadsafe(self._route, events)

    def _route(self, events: Sequence[Outbound]) -> None:
        for event in events:
            if isinstance(event, Failed):
                on_failure = self._on_model_failure.pop(event.model, None)
                if on_failure is not None:  # else it was unloaded meanwhile
                    on_failure(event.problem)
                continue
            if event.request_id in self._mailboxes:
                mailbox, _ = self._mailboxes[event.request_id]
                mailbox.put_nowait(event)

    async def _watch_thread(self) -> None:
        await asyncio.to_thread(self._engine.join)
        if not self._stopped:
            self._on_failure(self._engine.problem)
