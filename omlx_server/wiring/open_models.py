"""Makes the engine, the pool of models and the catalogue by which requests find them."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import Served, ServedModel
from omlx_server.core.blocks.pins import Pin, PinReport, Unpinned
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.pool.entry import Rules
from omlx_server.engine.pool.pool import ModelPool
from omlx_server.errors import OmlxError
from omlx_server.wiring.known import KnownModels
from omlx_server.wiring.loading import Loading
from omlx_server.wiring.model_factory import InstanceFactory

_log = logging.getLogger(__name__)
# Most seconds for writes to the cold tier at the end, after the requests' grace time.
_DRAIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    models: ServedModels
    engine: AsyncEngine


async def open_models(
    instances: InstanceFactory,
    catalogue: KnownModels,
    on_failure: Callable[[str], None],
    stack: AsyncExitStack,
) -> Opened:
    """Start the engine and the pool, which end with `stack`. `on_failure` is called when the engine
    or the first model has failed."""
    engine = AsyncEngine(on_failure, instances.account, instances.close, instances.cold_report)
    instances.wake = engine.wake
    first = catalogue.first()[0].load_request.key

    def failed(key: str, problem: str) -> None:
        _log.critical("%s has failed: %s", catalogue.source(key).located.names[0], problem)
        if instances.has_lost_a_rank:
            return  # the process is about to start anew
        if key == first:
            on_failure(problem)
        else:
            pool.unload_failed(key)

    pool: ModelPool[Served] = ModelPool(
        Loading(engine, instances, catalogue, failed, lambda key: _make_way(pool, key)),
        lambda: _rules(instances, catalogue),
        live=_live,
    )
    await engine.start()
    stack.push_async_callback(_close, pool)
    stack.push_async_callback(_stop, engine, instances)
    stack.push_async_callback(pool.close)
    pool.start()
    return Opened(ServedModels(pool, catalogue, engine, KeptBlocks(engine, instances)), engine)


async def begin(models: ServedModels, catalogue: KnownModels) -> None:
    """Load the models that the server was started with, then pinned ones. Raises OmlxError for the
    former."""
    for first in catalogue.first():
        await models.pool.load(first.load_request)
    await load_pinned(models, catalogue)
    models.started = True


async def load_pinned(models: ServedModels, catalogue: KnownModels) -> None:
    """Load pinned models; errors are logged."""
    for name in catalogue.pinned:
        try:
            await models.pool.load((await models.find_listing(name)).load_request)
        except OmlxError as error:
            _log.error("%s is pinned, and is not there: %s", name, error.message)


async def _make_way(pool: ModelPool[Served], key: str) -> bool:
    """Unload idle adapters, or else a model for the one with this `key`. Raises as
    `ModelPool.make_way`."""
    clients = [model.engine for model in pool.loaded() if isinstance(model, ServedModel)]
    freed = [await client.unload_idle_adapters() for client in clients]
    return any(freed) or await pool.make_way(key)


def _rules(instances: InstanceFactory, catalogue: KnownModels) -> Rules:
    account, most = instances.account, catalogue.settings.models.max_loaded
    return Rules(account.limit, most, account.pressure.is_critical)


def _live(model: Served) -> int:
    return model.engine.status.live if isinstance(model, ServedModel) else 0


async def _stop(engine: AsyncEngine, instances: InstanceFactory) -> None:
    grace = instances.settings.server.shutdown_grace_seconds
    await engine.stop(min(_DRAIN_SECONDS, grace))


async def _close(pool: ModelPool[Served]) -> None:
    for model in pool.loaded():
        if isinstance(model, ServedModel):
            await asyncio.to_thread(model.grammars.close)


class KeptBlocks:
    """Cached blocks and pins of all models, loaded or not. Works on the mlx thread."""

    def __init__(self, engine: AsyncEngine, instances: InstanceFactory) -> None:
        self._engine = engine
        self._instances = instances

    async def clear_cold(self, salt: bytes | None) -> None:
        """Delete the blocks of `salt` (None: of all) in the cold tier."""
        await self._engine.call(partial(self._instances.clear_cold, salt))

    async def save_pin(self, pin: Pin, salt: bytes) -> PinReport:
        return await self._engine.call(partial(self._instances.pins.save, pin, salt))

    async def pins(self, salt: bytes) -> list[PinReport]:
        return await self._engine.call(partial(self._instances.pins.reports, salt))

    async def unpin(self, id: str, salt: bytes) -> Unpinned:
        """End a pin of a tenant, or return UNKNOWN."""
        return await self._engine.call(partial(self._instances.pins.end, id, salt))
