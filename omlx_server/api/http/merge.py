"""Merge asynchronous streams into one. Runs on the asyncio thread."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

A = TypeVar("A")

_ROOM = 64
"""Items that may wait for the reader, before the streams wait."""


async def merged(streams: Sequence[AsyncIterator[A]], at_once: int) -> AsyncGenerator[A, None]:
    """Yield the items of all streams, each stream's in order, with at most `at_once` running. One
    stream's error cancels the others and is raised."""
    items: asyncio.Queue[A | None] = asyncio.Queue()
    turn, room = asyncio.Semaphore(at_once), asyncio.Semaphore(_ROOM)

    async def drain(stream: AsyncIterator[A]) -> None:
        async with turn:
            async for item in stream:
                await room.acquire()
                items.put_nowait(item)

    async def drain_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for stream in streams:
                    group.create_task(drain(stream))
        finally:
            items.put_nowait(None)

    work = asyncio.create_task(drain_all())
    try:
        while (item := await items.get()) is not None:
            room.release()
            yield item
        await _finished(work)
    finally:
        work.cancel()
        await asyncio.wait({work})


async def _finished(work: asyncio.Task[None]) -> None:
    try:
        await work
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
