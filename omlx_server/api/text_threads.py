"""Threads that encode prompts, in pools by size: a short prompt never waits for megabytes. A long
text is many jobs, so that clients take turns. Runs on the asyncio thread."""

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from tokenizers import Encoding

from omlx_server.api.http import exchange
from omlx_server.api.worker_threads import IsAbandoned, WorkerThreads
from omlx_server.core.clients import CLIENT
from omlx_server.text.encoding.encoder import IN_TURN, Encode

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Name, the largest size in bytes, number of threads, and how many a client has at most. Threads of
# long texts mostly wait for their batches.
_POOLS = (("short", 1 << 16, 4, 4), ("long", 1 << 20, 8, 1), ("huge", 1 << 62, 8, 1))
_BATCHES = 2
_NICENESS = 10


class EncodingAbandoned(Exception):
    """Nobody waits any more for the text that is being encoded."""


class TextThreads:
    """Runs work in the pool of its size, the client that is furthest behind first. Cancelled work
    ends with its batch, or never begins."""

    def __init__(self) -> None:
        self._pools = [
            (most, WorkerThreads(f"text-{name}", threads, each=each))
            for name, most, threads, each in _POOLS
        ]
        self._batches = WorkerThreads("encoding", _BATCHES, niceness=_NICENESS)

    async def run(self, work: Callable[[*Ts], T], *args: *Ts, size: int = 0, beside: int = 0) -> T:
        """Run `work(*args)` in a thread of the pool for `size`, the length of its texts, or for the
        request's body without `beside` bytes if that is more."""
        size, owner = max(size, exchange.current().body - beside), (CLIENT.get(),)
        pool = next(pool for most, pool in self._pools if size <= most)
        loop = asyncio.get_running_loop()

        def whole(is_abandoned: IsAbandoned) -> T:
            def in_turn(encode: Encode) -> list[Encoding]:
                def batch(_: IsAbandoned) -> list[Encoding]:
                    if is_abandoned():
                        raise EncodingAbandoned
                    return encode()

                running = self._batches.run(owner, batch)
                return asyncio.run_coroutine_threadsafe(running, loop).result()

            IN_TURN.set(in_turn)
            return work(*args)

        return await pool.run(owner, whole)
