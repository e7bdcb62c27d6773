"""One model on an engine of its own, for tests of what a model does."""

import asyncio
from collections.abc import Callable

from omlx_server.core.work import Work
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.messages import EngineState
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import Unavailable


class Alone(GeneratorClient):
    """`load` runs on the mlx thread. `on_failure` is told when the model can't be loaded, or fails
    for good."""

    def __init__(
        self,
        load: Callable[[], ModelInstance],
        on_failure: Callable[[str], None],
        account: MemoryAccount | None = None,
    ) -> None:
        self.whole = AsyncEngine(on_failure, account)
        super().__init__(self.whole, on_failure)
        self._make = load
        self._report = on_failure

    async def start(self) -> None:
        """Returns at once, `ready` tells when the model is loaded."""
        await self.whole.start()
        self._coming = asyncio.create_task(self._come())

    async def ready(self) -> None:
        await self._coming
        if self.status.state is not EngineState.READY:
            raise Unavailable(self.status.problem)

    async def stop(self, drain_seconds: float = 0.0) -> None:
        await self.whole.stop(drain_seconds)
        await asyncio.gather(self._coming, return_exceptions=True)

    @property
    def open_requests(self) -> int:
        return len(self.whole._mailboxes)

    async def _come(self) -> None:
        try:
            await self.load(_work(self._make))
        except (OSError, RuntimeError, Unavailable) as error:
            self._report(str(error))


def _work(load: Callable[[], ModelInstance]) -> Work[ModelInstance]:
    yield
    return load()
