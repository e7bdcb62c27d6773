"""Cancel the work for a client that has disconnected, which ends its sequences."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from omlx_server.errors import DeadlineExceeded, Unavailable

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection; no response can be sent."""


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, T], seconds: float = 0.0
) -> T:
    """Await `work` and return its result; cancel it after `seconds` (0 is no limit). Raises
    ClientGone, DeadlineExceeded after `seconds`, and Unavailable at the shutdown."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        timeout, first = seconds or None, asyncio.FIRST_COMPLETED
        await asyncio.wait({task, watcher}, timeout=timeout, return_when=first)
        if task.done():
            return task.result()
        if watcher.done():
            raise ClientGone
        raise DeadlineExceeded("the request did not finish within its time limit")
    except asyncio.CancelledError:  # uvicorn cancels the request's task
        raise Unavailable("the server is shutting down") from None
    finally:
        await cancel_and_wait(task)
        await cancel_and_wait(watcher)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task that still runs, and ignore its outcome."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # asyncio logs an exception that nobody has looked at
