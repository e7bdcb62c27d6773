"""Models come and go: what the pool asks for is made here, with both of its sides. Lives on the
event loop's thread."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omlx_server.api.models.served import Served, ServedModel
from omlx_server.compute.embed.cross_encoder import CrossEncoder
from omlx_server.compute.embed.embedder import Embedder
from omlx_server.core.guard import Crash, guarded_async
from omlx_server.engine.client.encoders import Reader
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.client.model_client import LaneClient, ModelClient
from omlx_server.errors import LoadFailed, OmlxError, first_line
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.wiring.changed import changed_model
from omlx_server.wiring.encoders import (
    cross_encoder,
    embedder,
    serve_cross_encoder,
    serve_embedder,
)
from omlx_server.wiring.known import How, KnownModels, Source
from omlx_server.wiring.model_factory import Lanes
from omlx_server.wiring.served import make_served

A = TypeVar("A")

_log = logging.getLogger(__name__)
# What a model has kept goes to the cold tier before it leaves, as far as this reaches.
_KEEP_SECONDS = 10.0


class Loading:
    """The loader of one server's pool. `failed(key, problem)` is called when a model crashes again
    and again; `make_way(key)` unloads another one, if nobody uses it, for a request that does not
    fit beside it."""

    def __init__(
        self,
        engine: AsyncEngine,
        lanes: Lanes,
        known: KnownModels,
        failed: Callable[[str, str], None],
        make_way: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._engine = engine
        self._lanes = lanes
        self._known = known
        self._failed = failed
        self._make_way = make_way
        self._warming: set[asyncio.Task[None]] = set()

    async def load(self, key: str) -> Served:
        """Raises LoadFailed, with the reason in one line, whatever stood in the way: a model's own
        class and files may raise anything."""
        source = self._known.source(key)
        model = await guarded_async(self._load(source))
        if isinstance(model, Crash):
            told = isinstance(model.error, (OmlxError, OSError, ValueError))
            name, why = source.located.names[0], first_line(model.error) if told else model.text
            _log.error("%s can't be loaded: %s", name, why, exc_info=None if told else model.error)
            raise LoadFailed(f"the model '{name}' can't be loaded: {why}") from model.error
        return changed_model(model, self._lanes.settings)  # they may have changed meanwhile

    async def unload(self, model: Served) -> None:
        """Both sides go."""
        if isinstance(model, ServedModel):
            await model.engine.unload(_KEEP_SECONDS)
            await asyncio.to_thread(model.grammars.close)
        elif model.client is not None:
            await model.client.unload()

    async def _load(self, source: Source) -> Served:
        located, nbytes, account = source.located, source.nbytes, self._lanes.account
        make_way = partial(self._make_way, source.key)
        match source.how:
            case How.LANE:
                return await self._chat(source, make_way)
            case How.EMBEDDER:
                vectors = ModelClient[Reader[Embedder]](self._engine, make_way=make_way)
                await vectors.load(embedder(account, located, nbytes))
                return await _or_unload(vectors, serve_embedder(located, vectors))
            case How.CROSS_ENCODER:
                ranks = ModelClient[Reader[CrossEncoder]](self._engine, make_way=make_way)
                await ranks.load(cross_encoder(account, located, nbytes))
                return await _or_unload(ranks, serve_cross_encoder(located, ranks))

    async def _chat(self, source: Source, make_way: Callable[[], Awaitable[bool]]) -> ServedModel:
        """Weights and tokenizer are read side by side."""
        located = source.located
        client = LaneClient(
            self._engine, lambda problem: self._failed(source.key, problem), make_way
        )
        fingerprint = partial(self._lanes.fingerprint, located, whole=True)
        reading = asyncio.create_task(asyncio.to_thread(_tokenizer, located.path))
        async with AsyncExitStack() as undo:
            undo.push_async_callback(_ended, reading)  # a thread can't be stopped
            known_as = await asyncio.to_thread(self._lanes.fingerprint, located)
            system = await asyncio.to_thread(self._lanes.system_fingerprint, located)
            work = self._lanes.making(located, source.nbytes, known_as)
            await client.load(work, located.names[0])
            undo.push_async_callback(client.unload)
            tokenizer = await reading
            vocab = await client.ask(lambda lane: lane.runner.loaded.dims.vocab)
            settings = self._lanes.settings
            served = await asyncio.to_thread(
                make_served, located, client, settings, fingerprint, system, tokenizer, vocab
            )
            undo.pop_all()
        warming = asyncio.create_task(asyncio.to_thread(served.grammars.warm))
        self._warming.add(warming)
        warming.add_done_callback(self._warming.discard)
        return served


def _tokenizer(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(path)
    tokenizer.prepare()
    return tokenizer


async def _ended(task: asyncio.Task[Any]) -> None:
    """Its failure is taken: it comes second, to one that is told already."""
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def _or_unload(client: ModelClient[Any], making: Awaitable[A]) -> A:
    """What is made for a model that is loaded; without it, the model goes."""
    async with AsyncExitStack() as undo:
        undo.push_async_callback(client.unload)
        made = await making
        undo.pop_all()
    return made
