"""Several models in one engine."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from omlx_server.compute.model.loader import load
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.wiring.model_factory import InstanceFactory
from tests.compute.oracle import greedy, is_greedy
from tests.tiny_models import save_tiny

KINDS = ("llama", "qwen3", "gemma3_text", "qwen3_next")
PROMPTS = [[(7 * i + j) % 190 + 1 for j in range(40 + 11 * i)] for i in range(4)]
MB = 1 << 20


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("several")
    for kind in KINDS:
        save_tiny(path / kind, kind)
    return path


class Several:
    """An engine and what it takes to load models."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        own = {"cache": {"hot_cache_only": True, "block_tokens": 16}, **settings}
        memory = {"activation_reserve": "1MB", **own.pop("memory", {})}
        self.settings = Settings.of({"memory": memory, **own})
        self.instances = InstanceFactory(self.settings)
        self.failures: list[str] = []
        account, close, cold = (
            self.instances.account,
            self.instances.close,
            self.instances.cold_report,
        )
        self.engine = AsyncEngine(self.failures.append, account, close, cold)
        self.instances.wake = self.engine.wake
        self._directory = directory
        self.failed: list[tuple[str, str]] = []

    async def load(
        self, kind: str, make_way: Callable[[], Any] | None = None, path: Path | None = None
    ) -> GeneratorClient:
        def fail(problem: str) -> None:
            self.failed.append((kind, problem))

        client = GeneratorClient(self.engine, fail, *([make_way] if make_way else []))
        located = Located(path or self._directory / kind, (kind,))
        await client.load(self.instances.making(located, 100_000), kind)
        return client

    def oracle(self, kind: str, prompt: Sequence[int], count: int) -> list[int]:
        return greedy(load(self._directory / kind).model, prompt, count)

    def is_right(self, kind: str, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Whether it is what the oracle says, however long it is."""
        return is_greedy(load(self._directory / kind).model, prompt, answer)

    @property
    def cold_blocks(self) -> int:
        """As the engine tells it."""
        assert self.engine.cold is not None
        return self.engine.cold.blocks

    @property
    def account(self) -> MemoryAccount:
        return self.instances.account


@asynccontextmanager
async def several(directory: Path, **settings: Any) -> AsyncIterator[Several]:
    gc.collect()
    found = Several(directory, **settings)
    await found.engine.start()
    try:
        yield found
        await found.engine.call(found.account.held)
    finally:
        await found.engine.stop(5.0)
    assert not found.failures


def play(scene: Any) -> None:
    async def timed() -> None:
        async with asyncio.timeout(240):
            await scene

    asyncio.run(timed())


def held(instance: ModelInstance) -> int:
    return instance.cache.index.nbytes
