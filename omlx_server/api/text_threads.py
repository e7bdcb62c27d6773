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
_BATCH_THREADS = 2
_NICENESS = 10


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

    async def run(self, work: Callable[[*Ts], T], *args: *Ts, size: int = 0, beside: int = 0) -> T:
        """Run `work(*args)` in a thread of the pool for `size`, the length of its texts, or for the
        request's body without `beside` bytes if that is more."""
        size = max(size, exchange.current_exchange().body - beside)
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
