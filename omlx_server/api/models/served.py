"""The HTTP side of the models: the names of a request, and the loaded models behind them."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from omlx_server.api.http.exchange import afterwards, current
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.models import encoders
from omlx_server.api.models.encoders import Role, ServedEmbedder, ServedReranker
from omlx_server.api.models.image_reader import ImageReader, TextOnly
from omlx_server.core.adapters import Adapter, salted
from omlx_server.core.blocks.pins import Pin, PinReport, Unpinned
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.prefix_cache.report import Dropped
from omlx_server.core.request import SamplingPresets
from omlx_server.core.scheduler.limits import Load
from omlx_server.engine.client.archives import PrefixArchives
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.engine.messages import Counted, State, Status
from omlx_server.engine.pool.entry import Phase, Wanted
from omlx_server.engine.pool.pool import ModelPool
from omlx_server.errors import AdapterNotFound, AdapterUnusable, BadRequest, ModelNotFound
from omlx_server.models.adapters.shelf import AdapterFiles, AdapterPlaces
from omlx_server.text.dialect import Dialect
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.overflow import Overflow
from omlx_server.text.reasoning.constraint import ReasoningMarkers
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer

TemplateValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class SamplingDefaults(SamplingPresets):
    """The values for sampling fields that a request leaves out. `max_tokens` 0: no limit but the
    context."""

    max_tokens: int = 0


def _no_judge() -> ServedReranker:
    raise BadRequest("this model can't judge documents")


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One chat model and everything that a request to it needs.

    `system_fingerprint` names what computes its answers (weights, KV format, device, versions).
    `archives` exports and imports prefixes. Token ids are below `vocab`. `context_length` is in
    tokens, `created` in seconds since 1970. `markers`: the markers of thoughts, as tokens. `judge`
    returns the same model as one that ranks documents; it raises BadRequest or ModelUnavailable
    where the model can't. `recommended`: the sampling values that its makers recommend.
    `template_kwargs`: variables of the chat template; those that a request sends win. `images`
    reads the images of requests, or says why the model takes none. `adapter` is the one that the
    request wants, or that counts where it names none.
    """

    names: tuple[str, ...]
    system_fingerprint: str
    engine: GeneratorClient
    archives: PrefixArchives
    tokenizer: Tokenizer
    template: ChatTemplate
    context_length: int
    vocab: int
    created: int
    grammars: Grammars
    markers: ReasoningMarkers | None = None
    dialect: Dialect = field(default_factory=Dialect)
    strips_reasoning: bool = False
    overflow: Overflow = field(default_factory=Overflow)
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    judge: Callable[[], ServedReranker] = _no_judge
    recommended: Mapping[str, float] = field(default_factory=dict)
    template_kwargs: Mapping[str, TemplateValue] = field(default_factory=dict)
    images: ImageReader | TextOnly = field(default_factory=TextOnly)
    adapter: Adapter | None = None

    def adapted(self, adapter: Adapter | None) -> "ServedModel":
        """The model with an adapter, which has another fingerprint; itself with None."""
        if adapter is None:
            return self
        name = f"{self.system_fingerprint}_{adapter.digest.hex()[:8]}"
        return replace(self, adapter=adapter, system_fingerprint=name)

    @property
    def full_name(self) -> str:
        """Its first name, as MODEL:ADAPTER where it has an adapter."""
        name = self.names[0]
        return name if self.adapter is None else f"{name}:{self.adapter.name}"

    async def reset_cache(self, salt: bytes | None) -> Dropped:
        """Drop the blocks of one salt, or with None all that are not in use. Returns what there
        was."""
        return await self.engine.ask(lambda instance: instance.reset_cache(salt))


Served = ServedModel | ServedEmbedder | ServedReranker


@dataclass(frozen=True, slots=True)
class ModelListing:
    """A model that a request may name, loaded or not. `wanted` is what the pool needs to load it.
    `context_length` in tokens, None where its files do not tell; `created` in seconds since 1970.
    `takes_images`: whether its files, and the settings, let it take images. `adapters` says where
    its adapters are; None where it can have none.
    """

    role: Role
    names: tuple[str, ...]
    wanted: Wanted
    created: int
    context_length: int | None = None
    takes_images: bool = False
    adapters: AdapterPlaces | None = None


class Catalogue(Protocol):
    """The models that requests may name. A request without a name gets the first known model of the
    role that it needs."""

    @property
    def autoload(self) -> bool: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...
    @property
    def adapter_files(self) -> AdapterFiles: ...

    def known(self) -> Sequence[ModelListing]:
        """The models as the last look at the disk has found them."""

    def resolve_alias(self, name: str) -> str:
        """The name for which an alias stands; any other name is returned as it is."""

    async def refresh(self) -> None:
        """Look at the disk again, unless that was a moment ago."""


class Vitals(Protocol):
    """The engine's reports on its health and its memory."""

    @property
    def memory(self) -> MemoryReport | None: ...
    @property
    def counted(self) -> Mapping[str, Counted]:
        """The counters of each model by its name, also of models that were unloaded since."""

    @property
    def cold(self) -> ColdReport | None: ...

    def alive(self, now: float) -> bool: ...


class Kept(Protocol):
    """The cached blocks and pins of all models, also of models that are not loaded."""

    async def clear_cold(self, salt: bytes | None) -> None:
        """Delete the blocks in the cold tier: those of `salt`, or with None all of them."""

    async def pinned(self, pin: Pin) -> PinReport:
        """Save a pin that a model has just made, and report how much of it is cached."""

    async def pins(self, salt: bytes) -> list[PinReport]:
        """The pins of the tenant with this salt, the oldest first."""

    async def unpin(self, id: str, salt: bytes) -> Unpinned:
        """End a pin of the tenant with this salt. Returns UNKNOWN where it has no such pin."""


@dataclass(slots=True, eq=False)
class ServedModels:
    """Finds and loads the model that a request names. A model that a request has got stays loaded
    until that request's exchange has ended. An unknown name never loads or unloads anything.
    `started`: whether the models that the server starts with are loaded."""

    pool: ModelPool[Served]
    catalogue: Catalogue
    vitals: Vitals
    kept: Kept
    started: bool = False
    _seen: dict[str, ModelListing] = field(default_factory=dict)

    def known(self) -> list[ModelListing]:
        """The models on the disk, and those that are still loaded though their files are gone."""
        known = list(self.catalogue.known())
        keys = {one.wanted.key for one in known}
        gone = (one for key, one in self._seen.items() if key not in keys)
        return known + [one for one in gone if self._is_loaded(one)]

    def _is_loaded(self, known: ModelListing) -> bool:
        entry = self.pool.entry(known.wanted.key)
        return entry is not None and entry.model is not None

    def takes_images(self, known: ModelListing) -> bool:
        """Whether a chat model takes images: what is loaded of it tells, else its listing."""
        entry = self.pool.entry(known.wanted.key)
        model = entry.model if entry is not None else None
        if known.role is encoders.CHAT and isinstance(model, ServedModel):
            return isinstance(model.images, ImageReader)
        return known.takes_images

    async def find(self, name: str | None, adapter: str | None = None) -> ServedModel:
        """The chat model of that name, loaded first if need be; with None the first chat model. It
        has the `adapter` that is named here or, as MODEL:ADAPTER, in its name, or its default one.

        Raises:
            ModelNotFound: there is no such model, or it is not loaded and autoload is off.
            AdapterNotFound, AdapterUnusable: it has no such adapter, or that can't be used.
            BadRequest: the model can't chat, or none was named and there is no chat model; or the
                name and `adapter` name two adapters.
            Whatever ModelPool.acquire raises.
        """
        name, wanted = self.parted(name)
        if wanted and adapter and wanted != adapter:
            raise BadRequest(f"model asks for the adapter '{wanted[:200]}'", param="adapter")
        known = await self._of(name, encoders.CHAT)
        found = await self._adapter(known, adapter or wanted)
        model = await self._take(known)
        assert isinstance(model, ServedModel)
        return model.adapted(found)

    def parted(self, name: str | None) -> tuple[str | None, str | None]:
        """A name as MODEL:ADAPTER, in its two parts. One that is a model's stays whole."""
        meant = None if name is None else self.catalogue.resolve_alias(name)
        if meant is None or ":" not in meant or self._candidates(meant):
            return name, None
        model, _, adapter = meant.rpartition(":")
        return model, adapter

    async def _adapter(self, known: ModelListing, name: str | None) -> Adapter | None:
        """The adapter of that name, or the default one. Its files are read before the model is
        loaded for it."""
        places = known.adapters
        if places is None or not (name or places.default):
            return None
        return await asyncio.to_thread(self.catalogue.adapter_files.find, places, name)

    async def adapters(self, known: ModelListing) -> list[str]:
        """The names of the adapters that a model has now."""
        places = known.adapters
        return [] if places is None else list(await asyncio.to_thread(places.all))

    async def salts(self, salt: bytes) -> list[bytes]:
        """The salts of all blocks of a tenant with this `salt`: its own, and one for each adapter
        of all models. Adapters that can't be read have no blocks."""
        find, found = self.catalogue.adapter_files.find, [salt]
        for known in self.known():
            for name in await self.adapters(known):
                assert known.adapters is not None
                with suppress(AdapterUnusable, AdapterNotFound):
                    adapter = await asyncio.to_thread(find, known.adapters, name)
                    found.append(salted(salt, adapter))
        return list(dict.fromkeys(found))

    async def embedder(self, name: str | None) -> ServedEmbedder:
        """The embedding model of that name, else the first one; loads and raises as `find`."""
        model = await self._take(await self._of(name, encoders.EMBEDDING))
        assert isinstance(model, ServedEmbedder)
        return model

    async def reranker(self, name: str | None) -> ServedReranker:
        """The reranker of that name, else the first one; loads and raises as `find`. A chat model
        that is served as a reranker is asked through its `judge`."""
        model = await self._take(await self._of(name, encoders.RERANKING))
        if isinstance(model, ServedModel):
            return model.judge()
        assert isinstance(model, ServedReranker)
        return model

    def loaded(self) -> list[ServedModel]:
        """The chat models that are loaded now."""
        return [model for model in self.pool.loaded() if isinstance(model, ServedModel)]

    def engines(self) -> list[tuple[str, Status]]:
        """Name and status of each loaded chat model. At the start, while none is loaded, the one
        that is to be loaded first stands there as STARTING."""
        found = [(model.names[0], model.engine.status) for model in self.loaded()]
        first = self._of_role(None, encoders.CHAT)
        if not (found or self.started or first is None):
            found.append((first.names[0], Status(State.STARTING, Load(0, 0, 0), time.monotonic())))
        return found

    async def known_as(self, name: str) -> ModelListing:
        """The listing of the model of that name, whatever its role. It loads nothing. Raises
        ModelNotFound."""
        found = await self._sought(lambda: next(iter(self._candidates(name)), None))
        if found is None:
            raise self._unknown(name, "")
        return found

    async def _of(self, name: str | None, role: Role) -> ModelListing:
        """The listing of the model of that name and role. Raises as `find`."""
        known = await self._sought(lambda: self._of_role(name, role))
        if known is None:
            raise self._missing(name, role)
        return known

    async def _take(self, known: ModelListing) -> Served:
        """The model, with a lease that is released when the current exchange ends."""
        entry = self.pool.entry(known.wanted.key)
        is_there = entry is not None and entry.phase not in (Phase.ABSENT, Phase.FAILED)
        if not (is_there or self.catalogue.autoload):
            raise ModelNotFound(
                f"The model '{known.names[0]}' is not loaded, and models.autoload is off: load it "
                "with `omlx-server load`",
                param="model",
            )
        self._seen[known.wanted.key] = known
        current().model = label_of(known.names[0])
        lease = await self.pool.acquire(known.wanted)
        afterwards(lease.release)
        return lease.model

    async def _sought(self, find: Callable[[], ModelListing | None]) -> ModelListing | None:
        """What `find` finds, if need be after another look at the disk."""
        found = find()
        if found is None:
            await self.catalogue.refresh()
            found = find()
        return found

    def _of_role(self, name: str | None, role: Role) -> ModelListing | None:
        """The known model of that name and role; without a name the first one of that role."""
        known = self.catalogue.known() if name is None else self._candidates(name)
        return next((k for k in known if k.role is role), None)

    def _candidates(self, name: str) -> list[ModelListing]:
        """The known models of that name; one whose full name it is goes before others."""
        meant = self.catalogue.resolve_alias(name)
        found = [known for known in self.known() if meant in known.names]
        return sorted(found, key=lambda known: known.names[0] != meant)

    def _missing(self, name: str | None, role: Role) -> BadRequest | ModelNotFound:
        names = [n for k in self.catalogue.known() if k.role is role for n in k.names]
        hint = encoders.hint_for(role, names)
        if name is None:
            return BadRequest(f"{role.route} needs {role.noun}. {hint}", param="model")
        if role is not encoders.CHAT and self.parted(name)[1] is not None:
            return BadRequest(f"{role.route} knows no adapters: name a model alone", param="model")
        roles = list(dict.fromkeys(k.role for k in self._candidates(name)))
        if roles:
            return encoders.for_another_route(name, roles, role, hint)
        return self._unknown(name, hint)

    def _unknown(self, name: str, hint: str) -> ModelNotFound:
        meant = self.catalogue.resolve_alias(name)
        why = f": the name stands for '{meant}', which is not here" if meant != name else ""
        return ModelNotFound(
            f"The model '{name[:200]}' does not exist{why}. {hint}".strip(), param="model"
        )
