"""Awaiting a job of the mlx thread for a client: while it is there, and within its time."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from omlx_server.api.context import context_of
from omlx_server.api.http import sse
from omlx_server.errors import DeadlineExceeded

T = TypeVar("T")


async def result_for(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, which is cancelled when the client leaves or its time is over.

    Raises:
        ClientGone, Unavailable: as sse.while_connected.
        DeadlineExceeded: server.request_timeout_seconds are over.
    """
    seconds = context_of(request).request_timeout_seconds
    return await sse.while_connected(request.receive, _in_time(work, seconds or None))


async def _in_time(work: Coroutine[Any, Any, T], seconds: float | None) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise DeadlineExceeded("the request did not finish within its time limit") from None
