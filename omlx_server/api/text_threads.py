"""Threads that render and encode prompts, in lanes by size: who asks something short never waits
for a text of megabytes, and however many of those come, one is encoded at a time. asyncio thread.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from omlx_server.api.http import exchange

T = TypeVar("T")

# Up to so many bytes, so many threads: a short text takes milliseconds, the largest take seconds.
_LANES = (("short", 1 << 16, 4), ("long", 1 << 20, 1), ("huge", 1 << 62, 1))


class TextThreads:
    """In each lane it is the turn of whoever came first. Who is cancelled while it waits leaves."""

    def __init__(self) -> None:
        self._lanes = [
            (most, ThreadPoolExecutor(threads, thread_name_prefix=f"text-{name}"))
            for name, most, threads in _LANES
        ]

    async def run(self, work: Callable[[], T], size: int = 0) -> T:
        """What `work` returns or raises. `size` of its texts, where the body of the current request
        does not tell all."""
        size = max(size, exchange.body_size())
        lane = next(lane for most, lane in self._lanes if size <= most)
        call = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(lane, call, work)
