"""Several streams read at once as one. Lives on the asyncio thread."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

A = TypeVar("A")

_ROOM = 64
"""A reader that is slow holds the streams back after so many."""


async def merged(streams: Sequence[AsyncIterator[A]], at_once: int) -> AsyncGenerator[A, None]:
    """All items of all streams, each stream's own in order, `at_once` of them running, the
    first ones first. What one raises is raised, and the others are closed."""
    items: asyncio.Queue[A | None] = asyncio.Queue(_ROOM)
    turn = asyncio.Semaphore(at_once)

    async def drain(stream: AsyncIterator[A]) -> None:
        async with turn:
            async for item in stream:
                await items.put(item)

    async def drain_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for stream in streams:
                    group.create_task(drain(stream))
        finally:
            await items.put(None)

    work = asyncio.create_task(drain_all())
    try:
        while (item := await items.get()) is not None:
            yield item
        await _finished(work)
    finally:
        work.cancel()
        while not work.done():
            _empty(items)
            await asyncio.wait({work}, timeout=0.01)


async def _finished(work: asyncio.Task[None]) -> None:
    """Wait for it; of several errors the first is raised."""
    try:
        await work
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _empty(items: asyncio.Queue[A | None]) -> None:
    while not items.empty():
        items.get_nowait()
