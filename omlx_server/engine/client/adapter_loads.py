"""Loads of one model's adapters, each once for all requests."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from omlx_server.core.adapters import Adapter
from omlx_server.errors import Unavailable

A = TypeVar("A")

# Longest wait of a request for a place for its adapter.
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.05


class AdapterLoads:
    """Loads, one at a time. `load` returns False if there is no place now."""

    def __init__(self, load: Callable[[Adapter], Awaitable[bool]]) -> None:
        self._load = load
        self._tasks: dict[Adapter, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    async def wait_for(self, adapter: Adapter) -> None:
        """Wait until an adapter is loaded. Raises what `load` raises, and Unavailable after 30
        seconds without a place, or when the model is unloaded."""
        task = self._tasks.get(adapter)
        if task is None:
            task = self._tasks[adapter] = asyncio.create_task(self._loading(adapter))
            task.add_done_callback(lambda done: self._done(adapter, done))
        await asyncio.wait([task])
        if task.cancelled():
            raise Unavailable("the model was unloaded")
        task.result()

    @property
    def is_busy(self) -> bool:
        """Whether a load or an `alone` is under way."""
        return self._turn.locked()

    async def alone(self, work: Awaitable[A]) -> A:
        """Do work while no adapter is loaded, and return its result."""
        async with self._turn:
            return await work

    def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _loading(self, adapter: Adapter) -> None:
        until = time.monotonic() + _PATIENCE_SECONDS
        async with self._turn:
            while not await self._load(adapter):
                if time.monotonic() > until:
                    raise Unavailable(
                        "there was no place for the adapter: those in memory are in use, or "
                        "requests under way need the memory. What helps: a higher "
                        "adapters.max_loaded or adapters.max_bytes",
                        retry_after=1,
                    )
                await asyncio.sleep(_LOOK_SECONDS)

    def _done(self, adapter: Adapter, task: asyncio.Task[None]) -> None:
        del self._tasks[adapter]
        if not task.cancelled():
            task.exception()  # retrieved, since all waiters may have left
