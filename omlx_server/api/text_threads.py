"""Threads that render and encode prompts, in pools by size: a short prompt never waits for a text
of megabytes, and only one text of each larger pool is encoded at a time. Runs on the asyncio
thread.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar, TypeVarTuple

from omlx_server.api.http import exchange

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Name, the largest size in bytes, number of threads. A short text takes milliseconds, the largest
# take seconds.
_POOLS = (("short", 1 << 16, 4), ("long", 1 << 20, 1), ("huge", 1 << 62, 1))


class TextThreads:
    """Runs work in the pool of its size, in the order in which it came. Work that is cancelled
    while it waits is never run."""

    def __init__(self) -> None:
        self._pools = [
            (most, ThreadPoolExecutor(threads, thread_name_prefix=f"text-{name}"))
            for name, most, threads in _POOLS
        ]

    async def run(self, work: Callable[[*Ts], T], *args: *Ts, size: int = 0, beside: int = 0) -> T:
        """Run `work(*args)` in a thread, and return or raise what it does. The pool follows from
        `size`, the length of its texts, or from the bytes of the request's body if those are more;
        `beside` of them are no text, but images.
        """
        size = max(size, exchange.current().body - beside)
        pool = next(pool for most, pool in self._pools if size <= most)
        call = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(pool, call, lambda: work(*args))
