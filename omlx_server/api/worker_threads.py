"""Threads for work on a request before the engine has it, such as encoding its texts. Clients take
times, by the seconds that their work has taken. Runs on the asyncio thread."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from omlx_server.core.virtual_times import Owner, VirtualTimes
from omlx_server.text.encoding.low_priority import be_polite

T = TypeVar("T")
IsAbandoned = Callable[[], bool]
"""Tells whether nobody waits any more for the result of the work. Any thread may ask."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    owner: Owner
    work: Callable[[IsAbandoned], Any]
    result: "asyncio.Future[Any]"
    context: Context = field(default_factory=copy_context)
    abandoned: threading.Event = field(default_factory=threading.Event)


class WorkerThreads:
    """A pool of `threads` threads, which are nicer to others by `niceness`. The next job is one of
    the owner that is furthest behind, of these the first to come. At most `each` jobs of a client
    run at a time."""

    def __init__(
        self, name: str, threads: int, *, each: int | None = None, niceness: int = 0
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, name, be_polite, (niceness,))
        self._threads, self._each = threads, each or threads
        self._waiting: list[_Job] = []
        self._running: list[_Job] = []
        self._times = VirtualTimes()

    async def run(self, owner: Owner, work: Callable[[IsAbandoned], T]) -> T:
        """Run `work` in a thread, and return or raise what it does. When the caller is cancelled,
        work that waits never runs; work that runs is told so, and waited for, because it holds
        memory until it ends."""
        job = _Job(owner, work, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._begin_next()
        try:
            result: T = await asyncio.shield(job.result)
            return result
        except asyncio.CancelledError:
            if job in self._waiting:
                self._waiting.remove(job)
            else:
                job.abandoned.set()
                await asyncio.wait([job.result])
                job.result.exception()
            raise

    def _begin_next(self) -> None:
        self._times.settle({job.owner for job in (*self._waiting, *self._running)})
        while len(self._running) < self._threads:
            clients = Counter(job.owner[:1] for job in self._running)
            ready = [job for job in self._waiting if clients[job.owner[:1]] < self._each]
            if not ready:
                break
            job = min(ready, key=lambda job: self._times.rank(job.owner))
            self._waiting.remove(job)
            self._running.append(job)
            begun = time.monotonic()
            running = self._pool.submit(job.context.run, job.work, job.abandoned.is_set)
            asyncio.wrap_future(running).add_done_callback(partial(self._end, job, begun))

    def _end(self, job: _Job, begun: float, running: "asyncio.Future[Any]") -> None:
        self._times.charge(job.owner, time.monotonic() - begun)
        self._running.remove(job)
        error = running.exception()
        if error is not None:
            job.result.set_exception(error)
        else:
            job.result.set_result(running.result())
        self._begin_next()
