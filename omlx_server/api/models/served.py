"""Finds and loads the model that a request names."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from omlx_server import clock
from omlx_server.api.http.exchange import current_exchange, run_afterwards
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.models.image_reader import ImageReader
from omlx_server.api.models.listing import CachedModels, Catalogue, ModelListing, Vitals
from omlx_server.api.models.served_model import (
    CHAT,
    EMBEDDING,
    RERANKING,
    Role,
    Served,
    ServedEmbedder,
    ServedModel,
    ServedReranker,
    check_preset,
)
from omlx_server.core.adapters import Adapter, salted
from omlx_server.core.scheduler.limits import Load
from omlx_server.engine.messages import EngineState, Status
from omlx_server.engine.pool.entry import Phase
from omlx_server.engine.pool.pool import ModelPool
from omlx_server.errors import (
    AdapterNotFound,
    AdapterUnusable,
    BadRequest,
    LoadFailed,
    ModelNotFound,
    OmlxError,
)
from omlx_server.models.adapters.registry import NONE
from omlx_server.models.hub.names import choose_gguf, hub_name
from omlx_server.models.locate import about_away

_LATEST = "latest"


@dataclass(slots=True, eq=False)
class ServedModels:
    """Finds and loads models; each stays loaded until the request's exchange ends. `started`:
    whether the models of the start are loaded."""

    pool: ModelPool[Served]
    catalogue: Catalogue
    vitals: Vitals
    caches: CachedModels
    started: bool = False
    _acquired: dict[str, ModelListing] = field(default_factory=dict)

    def known(self) -> list[ModelListing]:
        """Return the models on the disk, and loaded ones whose files are gone."""
        listings = list(self.catalogue.known())
        keys = {one.load_request.key for one in listings}
        gone = (one for key, one in self._acquired.items() if key not in keys)
        return listings + [one for one in gone if self._is_loaded(one)]

    def _is_loaded(self, listing: ModelListing) -> bool:
        entry = self.pool.entry(listing.load_request.key)
        return entry is not None and entry.model is not None

    def takes_images(self, listing: ModelListing) -> bool:
        entry = self.pool.entry(listing.load_request.key)
        model = entry.model if entry is not None else None
        if listing.role is CHAT and isinstance(model, ServedModel):
            return isinstance(model.images, ImageReader)
        return listing.takes_images

    async def find(
        self, name: str | None, *, adapter: str | None = None, preset: str | None = None
    ) -> ServedModel:
        """Return the chat model of that name, loaded if need be; with None the first one. Its
        adapter is `adapter`, that of a name MODEL:ADAPTER, or its default.

        Raises ModelNotFound, also for an unloaded model while autoload is off; AdapterNotFound and
        AdapterUnusable; BadRequest if it can't chat, lacks the preset, or two adapters are named;
        and as ModelPool.acquire.
        """
        untagged = name and await self.without_latest_tag(name)
        model_name, named_adapter = await self._split_adapter_fresh(untagged)
        if named_adapter and adapter and named_adapter != adapter:
            raise BadRequest(f"model asks for the adapter '{named_adapter[:200]}'", param="adapter")
        listing = await self._listing_for_role(model_name, CHAT)
        check_preset(listing.names[0], preset, listing.presets)
        own_adapter = await self.read_adapter(listing, adapter or named_adapter)
        model = await self._acquire(listing)
        assert isinstance(model, ServedModel)
        return model.with_preset(preset).with_adapter(own_adapter)

    async def without_latest_tag(self, name: str) -> str:
        """Remove Ollama's tag `:latest`, unless a model, alias or adapter has that name."""
        untagged = name.removesuffix(f":{_LATEST}")
        if untagged == name:
            return name
        model, adapter = await self._split_adapter_fresh(untagged)
        if name in self.catalogue.aliases or self._listings_with_name(name):
            return name
        # The model may have an adapter `latest`.
        listings = self._candidates(model) if model and adapter is None else ()
        if listings and _LATEST in await self.adapter_names(listings[0]):
            return name
        return untagged

    def split_adapter(self, name: str | None) -> tuple[str | None, str | None]:
        """Split MODEL:ADAPTER; any other name has None. A model's full name is never split."""
        target = None if name is None else self.catalogue.resolve_alias(name)
        if target is None or self._candidates(target):
            return name, None
        model, _, adapter = target.rpartition(":")
        return (model, adapter) if adapter and self._candidates(model) else (name, None)

    async def _split_adapter_fresh(self, name: str | None) -> tuple[str | None, str | None]:
        """Split as `split_adapter`, after a look at the disk unless all names are known."""
        model, adapter = self.split_adapter(name)
        is_known_model = adapter is None and (name is None or self._candidates(name))
        if is_known_model:
            return model, adapter
        listings = self._candidates(model) if model is not None else ()
        if not listings or adapter not in await self.adapter_names(listings[0]):
            await self.catalogue.refresh()
        return self.split_adapter(name)

    async def read_adapter(self, listing: ModelListing, name: str | None) -> Adapter | None:
        """Read that adapter, or the default one. Raises AdapterNotFound and AdapterUnusable."""
        places = listing.adapters
        if places is None or not (name or places.default):
            return None
        return await asyncio.to_thread(self.catalogue.adapter_registry.find, places, name)

    async def adapter_names(self, listing: ModelListing) -> list[str]:
        places = listing.adapters
        return [] if places is None else list(await asyncio.to_thread(places.all))

    async def adapter_names_of(self, listed: Iterable[ModelListing]) -> dict[int, list[str]]:
        """Return each model's adapters by `id` of its listing; reads the disk once for each."""
        distinct = {id(listing): listing for listing in listed}
        return {key: await self.adapter_names(listing) for key, listing in distinct.items()}

    async def salts(self, salt: bytes) -> list[bytes]:
        """Return a tenant's salts: its own, and one for each adapter on the disk or read so far."""
        registry = self.catalogue.adapter_registry
        for listing in self.known():
            for name in await self.adapter_names(listing):
                assert listing.adapters is not None
                with suppress(AdapterUnusable, AdapterNotFound):
                    await asyncio.to_thread(registry.find, listing.adapters, name)
        of_adapters = (salted(salt, adapter) for adapter in registry.all_read())
        return list(dict.fromkeys((salt, *of_adapters)))

    async def embedder(self, name: str | None) -> ServedEmbedder:
        """Return the embedding model of that name, else the first one; as `find`."""
        model = await self._load(name, EMBEDDING)
        assert isinstance(model, ServedEmbedder)
        return model

    async def reranker(self, name: str | None) -> ServedReranker:
        """Return the reranker of that name, or a chat model that judges documents; as `find`."""
        model = await self._load(name, RERANKING)
        if isinstance(model, ServedModel):
            return model.judge()
        assert isinstance(model, ServedReranker)
        return model

    def keep(self, name: str, role: Role, seconds: float | None) -> None:
        """Keep a model loaded for `seconds` after its last use. Without autoload nothing changes,
        as no request could bring it back."""
        model_name, _ = self.split_adapter(name)
        listing = self._first_listing(model_name, role)
        if listing is not None and self.catalogue.autoload:
            self.pool.keep(listing.load_request.key, seconds)

    def loaded(self) -> list[ServedModel]:
        """Return the loaded chat models."""
        return [model for model in self.pool.loaded() if isinstance(model, ServedModel)]

    def engines(self) -> list[tuple[str, Status]]:
        """Return the loaded chat models' status. At the start the first to load is STARTING."""
        engines = [(model.names[0], model.engine.status) for model in self.loaded()]
        first = self._first_listing(None, CHAT)
        if not engines and not self.started and first is not None:
            starting = Status(EngineState.STARTING, Load(0, 0, 0), clock.now())
            engines.append((first.names[0], starting))
        return engines

    async def find_listing(self, name: str) -> ModelListing:
        """Return the listing of that name and name the exchange after it. Raises ModelNotFound."""
        untagged = await self.without_latest_tag(name)
        listing = await self._find_fresh(lambda: next(iter(self._candidates(untagged)), None))
        if listing is None:
            raise self._unknown_name_error(untagged, "")
        current_exchange().about = label_of(listing.names[0])
        return listing

    async def find_listing_and_adapter(self, name: str) -> tuple[ModelListing, str | None]:
        """Return the listing and adapter of a name. Raises ModelNotFound and AdapterNotFound."""
        model, adapter = await self._split_adapter_fresh(await self.without_latest_tag(name))
        listing = await self.find_listing(model or name)
        if adapter is not None and adapter not in (NONE, *await self.adapter_names(listing)):
            raise AdapterNotFound(
                f"The model '{listing.names[0]}' has no adapter '{adapter[:200]}'.", param="model"
            )
        return listing, adapter

    async def _load(self, name: str | None, role: Role) -> Served:
        untagged = name and await self.without_latest_tag(name)
        return await self._acquire(await self._listing_for_role(untagged, role))

    async def _listing_for_role(self, name: str | None, role: Role) -> ModelListing:
        listing = await self._find_fresh(lambda: self._first_listing(name, role))
        if listing is None:
            raise self._no_such_model_error(name, role)
        return listing

    async def _acquire(self, listing: ModelListing) -> Served:
        """Load the model, with a lease until the current exchange ends."""
        entry = self.pool.entry(listing.load_request.key)
        is_in_pool = entry is not None and entry.phase not in (Phase.ABSENT, Phase.FAILED)
        if not is_in_pool and not self.catalogue.autoload:
            raise ModelNotFound(
                f"The model '{listing.names[0]}' is not loaded, and models.autoload is off: load "
                "it with `omlx-server load`",
                param="model",
            )
        self._acquired[listing.load_request.key] = listing
        current_exchange().model = label_of(listing.names[0])
        lease = await self.pool.acquire(listing.load_request)
        run_afterwards(lease.release)
        return lease.model

    async def _find_fresh(self, find: Callable[[], ModelListing | None]) -> ModelListing | None:
        """Return what `find` returns, after a look at the disk unless that model is loaded."""
        match = find()
        if match is None or not self._is_loaded(match):
            await self.catalogue.refresh()
            match = find()
        return match

    def _first_listing(self, name: str | None, role: Role) -> ModelListing | None:
        listings = self.catalogue.known() if name is None else self._candidates(name)
        return next((one for one in listings if one.role is role), None)

    def _candidates(self, name: str) -> list[ModelListing]:
        """Return the models of that name, or of that name at the hub; a full name comes first."""
        target = self.catalogue.resolve_alias(name)
        matches = self._listings_with_name(target)
        if not matches and (name_at_hub := hub_name(target)) is not None:
            matches = self._listings_with_name(str(name_at_hub))
            if not matches and (one := choose_gguf(name_at_hub, self.known())) is not None:
                return [one]
        return matches

    def _listings_with_name(self, name: str) -> list[ModelListing]:
        matches = [listing for listing in self.known() if name in listing.names]
        return sorted(matches, key=lambda listing: listing.names[0] != name)

    def _no_such_model_error(self, name: str | None, role: Role) -> OmlxError:
        names = sorted(n for one in self.catalogue.known() if one.role is role for n in one.names)
        hint = f"This server has none: start it with {role.flag} NAME"
        if names:
            hint = f"This server has: {', '.join(names)}"
        if name is None:
            return BadRequest(f"{role.route} needs {role.noun}. {hint}", param="model")
        if role is not CHAT and self.split_adapter(name)[1] is not None:
            return BadRequest(f"{role.route} knows no adapters: name a model alone", param="model")
        other_roles = list(dict.fromkeys(one.role for one in self._candidates(name)))
        if not other_roles:
            return self._unknown_name_error(name, hint)
        nouns = " and ".join(other.noun for other in other_roles)
        routes = " or ".join(other.route for other in other_roles)
        message = f"'{name[:200]}' is {nouns}, for {routes}; {role.route} needs {role.noun}. {hint}"
        return BadRequest(message, param="model")

    def _unknown_name_error(self, name: str, hint: str) -> LoadFailed | ModelNotFound:
        target = self.catalogue.resolve_alias(name)
        name_at_hub = hub_name(target)
        without_adapter = target.rpartition(":")[0]
        for model in self.catalogue.broken():
            if not {target, str(name_at_hub), without_adapter}.isdisjoint(model.names):
                return LoadFailed(f"the model '{name[:200]}' can't be loaded: {model.problem}")
        why = f": the name stands for '{target}', which is not here" if target != name else ""
        message = f"The model '{name[:200]}' does not exist{why}."
        if name_at_hub is not None:
            hint = f"If the hub has it, `omlx-server pull {name_at_hub}` gets it. {hint}"
        parts = (message, about_away(self.catalogue.away), hint)
        return ModelNotFound(" ".join(filter(None, parts)), param="model")
