"""Loads and unloads models for the pool. Runs on the event loop's thread."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omlx_server.api.models.image_reader import ImageReader, TextOnly
from omlx_server.api.models.served_model import RERANKING, Served, ServedModel
from omlx_server.compute.embed.embedder import CrossEncoder, Embedder
from omlx_server.compute.embed.loader import loading_cross_encoder, loading_embedder
from omlx_server.compute.hardware import heap
from omlx_server.compute.model.fingerprint import file_states, together_fingerprint
from omlx_server.compute.model.loader import loading
from omlx_server.core.crash import Crash, guarded_async
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.core.work import Work, begin, counted
from omlx_server.engine.client.encoders import EncoderModel
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.client.model_client import GeneratorClient, ModelClient
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import Conflict, LoadFailed
from omlx_server.models.layout import weight_bytes
from omlx_server.models.locate import Located
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.wiring.draft_model import draft_model_for, draft_model_name
from omlx_server.wiring.encoders import on_account, serve_cross_encoder, serve_embedder
from omlx_server.wiring.images import make_image_reader
from omlx_server.wiring.known import KnownModel, KnownModels
from omlx_server.wiring.load_checks import (
    FailedLoad,
    check_encoder_text,
    check_files,
    check_text,
    is_lasting,
    states_of,
)
from omlx_server.wiring.model_factory import InstanceFactory
from omlx_server.wiring.overrides.templates import template_of
from omlx_server.wiring.served import changed_model, make_served

A = TypeVar("A")
MakeWay = Callable[[], Awaitable[bool]]
NoteRead = Callable[[int], None]

_log = logging.getLogger(__name__)
# Most seconds for writes to the cold tier before a model is unloaded.
_KEEP_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class Loading:
    """The loader of one server's pool. `failed(key, problem)` is called when a model has crashed
    for good; `make_way(key)` frees memory for it."""

    engine: AsyncEngine
    instances: InstanceFactory
    known: KnownModels
    failed: Callable[[str, str], None]
    make_way: Callable[[str], Awaitable[bool]]
    _failed: dict[str, FailedLoad] = field(default_factory=dict, init=False)
    _warming: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def check(self, key: str) -> None:
        """Raise LoadFailed if a model can't be loaded, by its files or an earlier load."""
        source, failed = self.known.source(key), self._failed.get(key)
        states = await asyncio.to_thread(states_of, source.located.path)
        if failed is not None and failed.holds(states, self.instances.settings):
            raise LoadFailed(failed.message)
        await _told(source, self._check(source))

    async def load(self, key: str, note: NoteRead = lambda nbytes: None) -> Served:
        """Load a model. Every error, of whatever kind, becomes a LoadFailed."""
        source, settings = self.known.source(key), self.instances.settings
        states = await asyncio.to_thread(states_of, source.located.path)
        self._failed.pop(key, None)
        try:
            model = await _told(source, self._load(source, note))
        except LoadFailed as error:
            is_sound = not isinstance(await guarded_async(self._check(source)), Crash)
            if is_sound and is_lasting(error):  # else the next check tells
                self._failed[key] = FailedLoad(error.message, states, settings)
            raise
        heap.collect_cycles()
        heap.freeze()
        return changed_model(model, self.instances.settings)  # they may have changed meanwhile

    async def unload(self, model: Served) -> None:
        if isinstance(model, ServedModel):
            await model.engine.unload(_KEEP_SECONDS)
            await asyncio.to_thread(model.grammars.close)
        elif model.client is not None:
            await model.client.unload()
        heap.freeze()

    async def _check(self, source: KnownModel) -> None:
        path, settings = source.located.path, self.instances.settings
        await asyncio.to_thread(check_files, path)
        match source.loads_as:
            case ModelKind.EMBEDDING:
                await asyncio.to_thread(check_encoder_text, path)
                opening: Work[Any] = loading_embedder(path)
            case ModelKind.RERANK:
                await asyncio.to_thread(check_encoder_text, path)
                opening = loading_cross_encoder(path)
            case _:
                template = await asyncio.to_thread(template_of, source.located.names, settings)
                reading = asyncio.create_task(asyncio.to_thread(check_text, path, template))
                await self._draft_model(source, reading)
                await reading
                opening = loading(path)
        await self.engine.call(partial(begin, opening))

    async def _load(self, source: KnownModel, note: NoteRead) -> Served:
        located, nbytes, account = source.located, source.nbytes, self.instances.account
        make_way = partial(self.make_way, source.key)
        match source.loads_as:
            case ModelKind.EMBEDDING:
                vectors = ModelClient[EncoderModel[Embedder]](self.engine, make_way=make_way)
                embedder = counted(loading_embedder(located.path), note)
                await vectors.load(on_account(account, embedder, nbytes))
                return await _or_unload(vectors, serve_embedder(located, vectors))
            case ModelKind.RERANK:
                ranks = ModelClient[EncoderModel[CrossEncoder]](self.engine, make_way=make_way)
                ranker = counted(loading_cross_encoder(located.path), note)
                await ranks.load(on_account(account, ranker, nbytes))
                return await _or_unload(ranks, serve_cross_encoder(located, ranks))
        return await self._chat(source, make_way, note)

    async def _chat(self, source: KnownModel, make_way: MakeWay, note: NoteRead) -> ServedModel:
        """Load a chat model; weights and tokenizer are read at the same time."""
        located = source.located
        client = GeneratorClient(
            self.engine, lambda problem: self.failed(source.key, problem), make_way
        )
        instances = self.instances
        files = await asyncio.to_thread(_Files, located)
        template = await asyncio.to_thread(template_of, located.names, instances.settings)
        reading = asyncio.create_task(asyncio.to_thread(_tokenizer, located.path, template))
        async with AsyncExitStack() as undo:
            undo.push_async_callback(_ended, reading)  # a thread can't be stopped
            known_as = await asyncio.to_thread(instances.fingerprint, located)
            system = await asyncio.to_thread(instances.system_fingerprint, located)
            drafter = await self._draft_model(source, reading)
            nbytes = self.known.bytes_in_memory(source)
            nbytes += weight_bytes(drafter[0].path) if drafter else 0
            work = instances.making(located, nbytes, known_as, drafter)
            await client.load(counted(work, note), located.names[0])
            undo.push_async_callback(client.unload)
            await self._default_adapter(source, client)
            tokenizer = await reading
            await asyncio.to_thread(files.check)
            about = await client.ask(_About.of)
            drafted_by = "heads" if about.has_heads else drafter and drafter[0]
            fingerprint = partial(_fingerprint, instances, files, drafted_by)
            settings = instances.settings
            served = await asyncio.to_thread(
                make_served, located, client, settings, fingerprint, system, tokenizer, about.vocab
            )
            images: ImageReader | TextOnly = TextOnly(about.why_no_vision)
            if about.has_vision:
                args = located, client, settings, tokenizer
                images = await asyncio.to_thread(make_image_reader, *args)
            served = replace(served, images=images)
            undo.pop_all()
        self._warm(served)
        return served

    async def _draft_model(
        self, source: KnownModel, reading: asyncio.Task[Tokenizer]
    ) -> tuple[Located, str] | None:
        """Return a model's draft model, checked, and its fingerprint."""
        located, settings = source.located, self.instances.settings
        if source.role is RERANKING or not draft_model_name(located, settings):
            return None
        strict = source.key == self.known.first()[0].load_request.key
        drafter = await asyncio.to_thread(
            draft_model_for, located, await reading, settings, strict=strict
        )
        if drafter is None:
            return None
        return drafter, await asyncio.to_thread(self.instances.fingerprint, drafter)

    async def _default_adapter(self, source: KnownModel, client: GeneratorClient) -> None:
        places = self.known.adapter_places(source)
        if places is not None and places.default:
            find = self.known.adapter_registry.find
            async with client.keeping_adapter(await asyncio.to_thread(find, places, None)):
                pass

    def _warm(self, served: ServedModel) -> None:
        limit = self.instances.account.limit
        warming = asyncio.create_task(asyncio.to_thread(served.grammars.warm, limit))
        self._warming.add(warming)
        warming.add_done_callback(self._warming.discard)


def _tokenizer(path: Path, template: str | None) -> Tokenizer:
    tokenizer = Tokenizer.load(path, template=template)
    tokenizer.prepare()
    return tokenizer


@dataclass(frozen=True, slots=True)
class _About:
    """Facts of a loaded model: heads, entries of its logits, and vision."""

    has_heads: bool
    vocab: int
    has_vision: bool
    why_no_vision: str

    @classmethod
    def of(cls, instance: ModelInstance) -> "_About":
        loaded = instance.runner.loaded
        return cls(loaded.has_heads, loaded.dims.vocab, loaded.has_vision, loaded.why_no_vision)


class _Files:
    """The files of a model as they are before they are read."""

    def __init__(self, located: Located) -> None:
        self.located = located
        self._states = file_states(located.path)

    def check(self) -> None:
        if file_states(self.located.path) != self._states:
            raise Conflict(
                f"the files of {self.located.names[0]} have changed since they were read: another "
                "version may have come; load it anew"
            )


def _fingerprint(
    instances: InstanceFactory, files: _Files, drafted_by: Located | str | None
) -> str:
    files.check()
    weights = instances.fingerprint(files.located, whole=True)
    files.check()  # it may have taken minutes
    if drafted_by is None:
        return weights
    if isinstance(drafted_by, Located):
        drafted_by = instances.fingerprint(drafted_by, whole=True)
    return together_fingerprint(weights, drafted_by)


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def _told(source: KnownModel, work: Awaitable[A]) -> A:
    """Await work on a model. Every error is logged and raised as LoadFailed."""
    done = await guarded_async(work)
    if not isinstance(done, Crash):
        return done
    name, why = source.located.names[0], done.reason
    trace = None if done.is_foreseen else done.error
    _log.error("%s can't be loaded: %s", name, why, exc_info=trace)
    raise LoadFailed(f"the model '{name}' can't be loaded: {why}") from done.error


async def _or_unload(client: ModelClient[Any], making: Awaitable[A]) -> A:
    async with AsyncExitStack() as undo:
        undo.push_async_callback(client.unload)
        served = await making
        undo.pop_all()
    return served
