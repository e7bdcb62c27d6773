"""Threads that decode and prepare images, beside those that encode prompts: neither waits for the
other. Runs on the asyncio thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_THREADS = 2


class ImageThreads:
    """Runs work in the order in which it came. Work that is cancelled while it waits is never run;
    work that runs is waited for, because it holds memory until it ends."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="images")

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run `work(*args)` in a thread, and return or raise what it does."""
        running = self._pool.submit(work, *args)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if not running.cancelled():
                ending = asyncio.wrap_future(running)
                await asyncio.wait([ending])
                ending.exception()
            raise
