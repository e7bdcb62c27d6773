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
_RETRY_SECONDS = 0.05


class AdapterLoads:
    """Loads adapters one at a time. `load` returns False if there is no place now."""

    def __init__(self, load: Callable[[Adapter], Awaitable[bool]]) -> None:
        self._load = load
        self._tasks: dict[Adapter, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()  # held while an adapter is loaded

    async def wait_for(self, adapter: Adapter) -> None:
        """Wait until an adapter is loaded. Raises Unavailable, and as `load`."""
        task = self._tasks.get(adapter)
        if task is None:
            task = self._tasks[adapter] = asyncio.create_task(
                self._load_when_there_is_room(adapter)
            )
            task.add_done_callback(lambda ended: self._forget_task(adapter, ended))
        await asyncio.wait([task])
        if task.cancelled():
            raise Unavailable("the model was unloaded")
        task.result()

    @property
    def is_busy(self) -> bool:
        """Whether a load or `run_between_loads` is under way."""
        return self._lock.locked()

    async def run_between_loads(self, work: Awaitable[A]) -> A:
        """Do work while no adapter is loaded, and return its result."""
        async with self._lock:
            return await work

    def cancel_all(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _load_when_there_is_room(self, adapter: Adapter) -> None:
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        async with self._lock:
            while not await self._load(adapter):
                if time.monotonic() > give_up_at:
                    raise Unavailable(
                        "there was no place for the adapter: those in memory are in use, or "
                        "requests under way need the memory. What helps: a higher "
                        "adapters.max_loaded or adapters.max_bytes",
                        retry_after=1,
                    )
                await asyncio.sleep(_RETRY_SECONDS)

    def _forget_task(self, adapter: Adapter, task: asyncio.Task[None]) -> None:
        del self._tasks[adapter]
        if not task.cancelled():
            task.exception()  # retrieved, since all waiters may have left
