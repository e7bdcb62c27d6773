"""A whole server in this process, all but the socket, for tests that look at it from within."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from omlx_server.api.app import create_app
from omlx_server.api.served import ServedModels
from omlx_server.build.context import make_context
from omlx_server.build.engine import make_engine
from omlx_server.build.readers import FoundReaders, ReaderModels
from omlx_server.build.served import make_served
from omlx_server.engine.client import AsyncEngine
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.settings.sections import Cache, Server


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    http: httpx.AsyncClient
    engine: AsyncEngine


@asynccontextmanager
async def inside(chat: Located, found: FoundReaders, timeout: float = 0) -> AsyncIterator[Inside]:
    """`timeout` is server.request_timeout_seconds."""
    settings = Settings(
        cache=Cache(hot_cache_only=True), server=Server(request_timeout_seconds=timeout)
    )
    failures: list[str] = []
    readers = ReaderModels(found, chat)
    engine = make_engine(chat, settings, failures.append, readers)
    served = make_served(chat, engine, settings)
    app = create_app(make_context(ServedModels([served], readers.serve(engine)), settings))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    await engine.start()
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield Inside(http, engine)
    finally:
        await engine.stop()
    assert not failures


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(120):
            await scene

    asyncio.run(timed())
