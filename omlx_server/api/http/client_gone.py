"""Notice that a client has disconnected, and cancel its work.

The work for a response that streams or takes long runs beside a watcher of the connection. Its
cancellation closes the generation and ends its sequences.
"""

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
    """Await `work` and return its result; cancel it if the client disconnects or `seconds` are over
    (0 is no limit).

    Raises:
        ClientGone: the client disconnected.
        DeadlineExceeded: `seconds` are over.
        Unavailable: the server shuts down. uvicorn cancels the request's task then.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait({task, watcher}, timeout=seconds or None, return_when=first)
        if task.done():
            return task.result()
        if watcher.done():
            raise ClientGone
        raise DeadlineExceeded("the request did not finish within its time limit")
    except asyncio.CancelledError:
        raise Unavailable("the server is shutting down") from None
    finally:
        await cancel_and_wait(task)
        await cancel_and_wait(watcher)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has ended, however it ends."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # asyncio logs an exception that nobody has looked at
