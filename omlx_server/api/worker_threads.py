"""Threads for work before the engine has a request, in which clients take turns. asyncio thread."""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Protocol, TypeVar, TypeVarTuple

from tokenizers import Encoding

from omlx_server import clock
from omlx_server.api.http import exchange
from omlx_server.core.clients import CLIENT, Owner, VirtualTimes
from omlx_server.errors import Unavailable
from omlx_server.text.encoding.encoder import IN_TURN, Encode
from omlx_server.text.encoding.low_priority import be_polite

T = TypeVar("T")
IsAbandoned = Callable[[], bool]
"""Returns whether nobody waits for the result any more. Any thread may call it."""
# Name, the largest size in bytes, number of threads, and how many a client has at most. Threads of
# long texts mostly wait for their batches.
_POOLS = (("short", 1 << 16, 4, 4), ("long", 1 << 20, 8, 1), ("huge", 1 << 62, 8, 1))
_BATCH_THREADS = 2
_NICENESS = 10


class RunInThread(Protocol):
    """Runs `work` in a thread. A cancelled caller waits for it to end, as it holds memory."""

    async def __call__(self, work: Callable[[IsAbandoned], T]) -> T: ...


Turns = Callable[[], AbstractAsyncContextManager[RunInThread]]
"""Makes the next turn of one owner: a context in which a thread is the caller's. Entering it raises
Unavailable if that takes too long."""


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A turn that waits until it is `begun`, or runs."""

    owner: Owner
    begun: "asyncio.Future[None]"


class WorkerThreads:
    """A pool of threads. The owner that is furthest behind is next; a client has at most `each`
    turns at a time, and waits at most `patience` seconds."""

    def __init__(
        self,
        name: str,
        threads: int,
        *,
        each: int | None = None,
        patience: float = math.inf,
        niceness: int = 0,
    ) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix=name, initializer=be_polite, initargs=(niceness,)
        )
        self._most, self._most_of_client = threads, each or threads
        self._patience = patience
        self._waiting: list[_Turn] = []
        self._running: list[_Turn] = []
        self._times = VirtualTimes()

    async def run(self, owner: Owner, work: Callable[[IsAbandoned], T]) -> T:
        async with self.turn(owner) as run:
            return await run(work)

    @asynccontextmanager
    async def turn(self, owner: Owner) -> AsyncIterator[RunInThread]:
        """Wait for a thread, which is the caller's within this context."""
        turn = _Turn(owner, asyncio.get_running_loop().create_future())
        began_at = math.inf
        self._waiting.append(turn)
        self._begin_next()
        try:
            await self._wait_for(turn)
            began_at = clock.now()
            yield self._run
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._running.remove(turn)
                self._times.charge(owner, max(0.0, clock.now() - began_at))
                self._begin_next()

    async def _wait_for(self, turn: _Turn) -> None:
        try:
            async with clock.timeout(self._patience if self._patience < math.inf else None):
                await turn.begun
        except TimeoutError:
            raise Unavailable(
                f"the server has more {self._name} to prepare than it can within "
                f"{self._patience:.0f} s",
                retry_after=math.ceil(self._patience),
            ) from None

    async def _run(self, work: Callable[[IsAbandoned], T]) -> T:
        abandoned = threading.Event()
        running = self._pool.submit(copy_context().run, work, abandoned.is_set)
        result = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            abandoned.set()
            await asyncio.wait([result])
            result.exception()
            raise

    def _begin_next(self) -> None:
        while len(self._running) < self._most:
            waiting = [turn for turn in self._waiting if not turn.begun.done()]
            self._times.settle({turn.owner for turn in (*waiting, *self._running)})
            # The first of an owner's names is the client.
            running_of = Counter(turn.owner[:1] for turn in self._running)
            ready = [t for t in waiting if running_of[t.owner[:1]] < self._most_of_client]
            if not ready:
                return
            turn = min(ready, key=lambda turn: self._times.rank(turn.owner))
            self._waiting.remove(turn)
            self._running.append(turn)
            turn.begun.set_result(None)


Ts = TypeVarTuple("Ts")


class EncodingAbandoned(Exception):
    """Nobody waits any more for the text that is being encoded."""


class TextThreads:
    """Runs work in the pool of its size. Cancelled work ends with its batch, or never begins."""

    def __init__(self) -> None:
        self._pools = [
            (most_bytes, WorkerThreads(f"text-{name}", threads, each=each))
            for name, most_bytes, threads, each in _POOLS
        ]
        self._batch_threads = WorkerThreads("encoding", _BATCH_THREADS, niceness=_NICENESS)

    async def run(
        self, work: Callable[[*Ts], T], *args: *Ts, size: int = 0, other_bytes: int = 0
    ) -> T:
        """Run `work(*args)` in a thread of the pool for `size`, the length of its texts, or for the
        request's body without `other_bytes` if that is more."""
        size = max(size, exchange.current_exchange().body - other_bytes)
        pool = next(pool for most_bytes, pool in self._pools if size <= most_bytes)
        owner, loop = (CLIENT.get(),), asyncio.get_running_loop()

        def work_in_turns(is_abandoned: IsAbandoned) -> T:
            def encode_in_turn(encode: Encode) -> list[Encoding]:
                def encode_batch(_: IsAbandoned) -> list[Encoding]:
                    if is_abandoned():
                        raise EncodingAbandoned
                    return encode()

                batch = self._batch_threads.run(owner, encode_batch)
                return asyncio.run_coroutine_threadsafe(batch, loop).result()

            # The encoder within `work` hands each of its batches to this function.
            IN_TURN.set(encode_in_turn)
            return work(*args)

        return await pool.run(owner, work_in_turns)
