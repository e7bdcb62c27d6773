"""All models of a server: the engine that runs them, the pool they come and go in, and the names by
which requests find them."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from omlx_server.api.models.served import Served, ServedModel, ServedModels
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.pool.pool import ModelPool
from omlx_server.engine.pool.residency import Rules
from omlx_server.errors import OmlxError
from omlx_server.settings import Settings
from omlx_server.wiring.kept import KeptBlocks
from omlx_server.wiring.known import KnownModels
from omlx_server.wiring.loading import Loading
from omlx_server.wiring.model_factory import Lanes

_log = logging.getLogger(__name__)
# Of the time that a service manager gives us to end; requests have had theirs before.
_DRAIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """What requests ask, and what is behind it."""

    models: ServedModels
    lanes: Lanes
    engine: AsyncEngine


async def open_models(
    settings: Settings,
    known: KnownModels,
    on_failure: Callable[[str], None],
    stack: AsyncExitStack,
) -> Opened:
    """The engine is started, nothing is loaded yet. `on_failure` is called when it, or the model
    that the server was started with, can't go on. `stack` ends it all."""
    lanes = Lanes(settings)
    engine = AsyncEngine(on_failure, lanes.account, lanes.close, lanes.cold_report)
    lanes.wake = engine.wake
    first = known.first()[0].wanted.key

    def failed(key: str, problem: str) -> None:
        _log.critical("%s has failed: %s", known.source(key).located.names[0], problem)
        if key == first:
            on_failure(problem)
        else:
            pool.failed(key)

    pool: ModelPool[Served] = ModelPool(
        Loading(engine, lanes, known, failed, lambda key: pool.make_way(key)),
        lambda: Rules(lanes.account.limit, known.max_loaded),
        live=_live,
    )
    await engine.start()
    stack.push_async_callback(_close, pool)
    stack.push_async_callback(_stop, engine, lanes)
    stack.push_async_callback(pool.close)
    pool.start()
    return Opened(ServedModels(pool, known, engine, KeptBlocks(engine, lanes)), lanes, engine)


async def begin(models: ServedModels, known: KnownModels) -> None:
    """Load what is to be there from the start. Raises OmlxError when that is not possible for what
    the server was started with."""
    for first in known.first():
        await models.pool.load(first.wanted)
    await load_pinned(models, known)
    models.started = True


async def load_pinned(models: ServedModels, known: KnownModels) -> None:
    """Have those there that never leave. What can't be loaded is said, and costs no other."""
    for name in known.pinned:
        try:
            await models.pool.load((await models.known_as(name)).wanted)
        except OmlxError as error:
            _log.error("%s is pinned, and is not there: %s", name, error.message)


def _live(model: Served) -> int:
    return model.engine.status.live if isinstance(model, ServedModel) else 0


async def _stop(engine: AsyncEngine, lanes: Lanes) -> None:
    grace = lanes.settings.server.shutdown_grace_seconds
    await engine.stop(min(_DRAIN_SECONDS, grace))


async def _close(pool: ModelPool[Served]) -> None:
    for model in pool.loaded():
        if isinstance(model, ServedModel):
            await asyncio.to_thread(model.grammars.close)
