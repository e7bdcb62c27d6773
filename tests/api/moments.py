"""Requests that are cut off at chosen moments."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx_server.api.app import create_app
from omlx_server.api.models.served import ServedModels
from omlx_server.core.work import finish
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.models.locate import Located
from omlx_server.settings import CacheSettings, Settings
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.wiring.context import make_context
from omlx_server.wiring.model_factory import InstanceFactory
from omlx_server.wiring.served import make_served
from tests.api.fixed import fixed_models
from tests.api.harness import CHAT
from tests.engine.alone import Alone

RAM_ONLY = Settings(cache=CacheSettings(hot_cache_only=True))


class Place:
    """One app with its engine, and a client that talks to it without sockets."""

    def __init__(self, models: ServedModels, engine: Alone) -> None:
        self.app = create_app(make_context(models, Settings()))
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        self.models, self.engine = models, engine
        self._starting = asyncio.create_task(self._start())

    async def ready(self) -> None:
        """The server has said that it is."""
        await self._starting

    async def _start(self) -> None:
        for known in self.models.catalogue.known():
            await self.models.pool.load(known.load_request)
        self.models.started = True

    async def ask(self, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "Hi"}]
        body = {"model": "tiny", "messages": messages, "temperature": 0, "ignore_eos": True}
        return await self.http.post(CHAT, json={**body, "max_tokens": 12, **fields})

    async def health(self, which: str) -> int:
        return (await self.http.get(f"/health/{which}")).status_code


Open = Callable[..., Any]


def tiny_instance(instances: InstanceFactory, path: Path) -> ModelInstance:
    """As the server makes it."""
    return finish(instances.making(Located(path, ("tiny",))))


@pytest.fixture
def opened(tiny_models: Path) -> Open:
    path = tiny_models / "org" / "tiny"

    @asynccontextmanager
    async def opened(
        make_instance: Callable[[InstanceFactory], ModelInstance] = lambda instances: tiny_instance(
            instances, path
        ),
        patience: float = 30,
    ) -> AsyncIterator[Place]:
        failures: list[str] = []
        instances = InstanceFactory(RAM_ONLY)
        engine = Alone(lambda: make_instance(instances), failures.append, instances.account)
        named = Located(path, ("tiny",))
        tokenizer = Tokenizer.load(path)
        vocab = tokenizer.vocab_size
        served = make_served(named, engine, Settings(), lambda: "", "fp_0", tokenizer, vocab)
        await engine.start()
        models = fixed_models(served, ready=engine.ready, vitals=engine.whole, patience=patience)
        place = Place(models, engine)
        try:
            async with place.http:
                yield place
            assert engine.open_requests == 0
        finally:
            await engine.stop()
            served.grammars.close()
        assert not failures

    return opened


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(120):
            await scene

    asyncio.run(timed())


def slow(path: Path, loaded: threading.Event) -> Callable[[InstanceFactory], ModelInstance]:
    def make(instances: InstanceFactory) -> ModelInstance:
        assert loaded.wait(60)
        return tiny_instance(instances, path)

    return make
