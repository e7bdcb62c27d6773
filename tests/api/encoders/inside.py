"""A whole server in this process, all but the socket, for tests that look at it from within."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from omlx_server.api.app import create_app
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.settings.model_sections import CacheSettings, MemorySettings, ModelsSettings
from omlx_server.settings.sections import ServerSettings
from omlx_server.wiring.context import make_context
from omlx_server.wiring.encoders import FoundEncoders
from omlx_server.wiring.known import KnownModels
from omlx_server.wiring.model_factory import InstanceFactory
from omlx_server.wiring.open_models import Opened, begin, open_models

NOWHERE = Path("/nowhere")


class Inside:
    """`http` talks to the app, in which the models of the start are being loaded."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        opened: Opened,
        known: KnownModels,
        account: MemoryAccount,
    ) -> None:
        self.http = http
        self.models = opened.models
        self.account = account
        self.starting = asyncio.create_task(begin(opened.models, known))

    async def ready(self) -> None:
        """All of them are there."""
        await self.starting

    @property
    def engine(self) -> GeneratorClient:
        """That of the model that chats."""
        return self.models.loaded()[0].engine


@asynccontextmanager
async def inside(
    chat: Located,
    found: FoundEncoders,
    timeout: float = 0,
    patience: float | None = None,
    limit: int = 0,
) -> AsyncIterator[Inside]:
    """`timeout` is server.request_timeout_seconds; so long requests wait for a model. `limit` is
    that of the memory, if any."""
    settings = Settings(
        memory=MemorySettings(limit=limit or "auto", activation_reserve=1 << 20),
        cache=CacheSettings(hot_cache_only=True),
        models=ModelsSettings(dirs=(NOWHERE,), use_hf_cache=False),
        server=ServerSettings(request_timeout_seconds=timeout),
    )
    failures: list[str] = []
    known = KnownModels(settings, chat, found)
    async with AsyncExitStack() as stack:
        instances = InstanceFactory(settings)
        opened = await open_models(instances, known, failures.append, stack)
        models = opened.models
        if patience is not None:
            models.pool.patience = patience
        transport = httpx.ASGITransport(
            create_app(make_context(models, settings)), raise_app_exceptions=False
        )
        http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        yield Inside(await stack.enter_async_context(http), opened, known, instances.account)
    assert not failures


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(120):
            await scene

    asyncio.run(timed())
