"""The HTTP side of the models: the names of a request, and the loaded models behind them."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from omlx_server.api.http.exchange import afterwards, current
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.models import encoders
from omlx_server.api.models.encoders import Role, ServedEmbedder, ServedReranker
from omlx_server.api.models.image_reader import ImageReader
from omlx_server.api.models.listing import CachedModels, Catalogue, ModelListing, Vitals
from omlx_server.api.models.served_model import (
    Served,
    ServedModel,
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
from omlx_server.models.hub.names import hub_name
from omlx_server.models.locate import about_away

_LATEST = "latest"
_TAG = f":{_LATEST}"


@dataclass(slots=True, eq=False)
class ServedModels:
    """Finds and loads the model that a request names. A model that a request has got stays loaded
    until that request's exchange has ended. An unknown name never loads or unloads anything.
    `started`: whether the models that the server starts with are loaded."""

    pool: ModelPool[Served]
    catalogue: Catalogue
    vitals: Vitals
    kept: CachedModels
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

    async def find(
        self, name: str | None, *, adapter: str | None = None, preset: str | None = None
    ) -> ServedModel:
        """The chat model of that name, loaded first if need be; with None the first chat model. It
        has the `adapter` that is named here or, as MODEL:ADAPTER, in its name, or its default one;
        and the defaults of `preset`, if one is given.

        Raises:
            ModelNotFound: there is no such model, or it is not loaded and autoload is off.
            AdapterNotFound, AdapterUnusable: it has no such adapter, or that can't be used.
            BadRequest: the model can't chat, or has no such preset, or none was named and there is
                no chat model; or the name and `adapter` name two adapters.
            Whatever ModelPool.acquire raises.
        """
        name, wanted = await self._split_known(name and await self.untagged(name))
        if wanted and adapter and wanted != adapter:
            raise BadRequest(f"model asks for the adapter '{wanted[:200]}'", param="adapter")
        known = await self._of(name, encoders.CHAT)
        check_preset(known.names[0], preset, known.presets)
        found = await self.adapter(known, adapter or wanted)
        model = await self._take(known)
        assert isinstance(model, ServedModel)
        return model.with_preset(preset).adapted(found)

    async def untagged(self, name: str) -> str:
        """The name without the tag that Ollama's clients write: `NAME:latest` is NAME, unless a
        model or an alias is called `NAME:latest`, or NAME has an adapter called latest. Any other
        name is returned as it is."""
        plain = name.removesuffix(_TAG)
        if plain == name:
            return name
        model, adapter = await self._split_known(plain)
        known = self._candidates(model) if model and adapter is None else ()
        adapters = await self.adapters(known[0]) if known else ()
        is_own = name in self.catalogue.aliases or self._named(name) or _LATEST in adapters
        return name if is_own else plain

    def split_adapter(self, name: str | None) -> tuple[str | None, str | None]:
        """The model and the adapter of a name that is MODEL:ADAPTER; any other name, and None for
        the adapter. A name that a model has is no such name, whatever is in it."""
        meant = None if name is None else self.catalogue.resolve_alias(name)
        if meant is None or self._candidates(meant):
            return name, None
        model, _, adapter = meant.rpartition(":")
        return (model, adapter) if adapter and self._candidates(model) else (name, None)

    async def _split_known(self, name: str | None) -> tuple[str | None, str | None]:
        """As `split_adapter`, if need be after another look at the disk: unless the name is that of
        a model that was there at the last one, or of a model and of an adapter that it has."""
        model, adapter = self.split_adapter(name)
        if adapter is None and (name is None or self._candidates(name)):
            return model, adapter
        known = self._candidates(model) if model is not None else ()
        if not known or adapter not in await self.adapters(known[0]):
            await self.catalogue.refresh()
        return self.split_adapter(name)

    async def adapter(self, known: ModelListing, name: str | None) -> Adapter | None:
        """The adapter of that name, or the default one. Its files are read, so that the model need
        not be loaded for one that can't be used. Raises AdapterNotFound and AdapterUnusable."""
        places = known.adapters
        if places is None or not (name or places.default):
            return None
        return await asyncio.to_thread(self.catalogue.adapter_registry.find, places, name)

    async def adapters(self, known: ModelListing) -> list[str]:
        """The names of the adapters that a model has now."""
        places = known.adapters
        return [] if places is None else list(await asyncio.to_thread(places.all))

    async def adapters_of(self, listed: Iterable[ModelListing]) -> dict[int, list[str]]:
        """The names of the adapters that each of these models has now, by the `id` of its listing.
        The disk is read once for each, however often it is listed: a model has several names."""
        distinct = {id(known): known for known in listed}
        return {own: await self.adapters(known) for own, known in distinct.items()}

    async def salts(self, salt: bytes) -> list[bytes]:
        """The salts of the blocks of a tenant with this `salt`: its own, and one for each adapter
        of all models, and for each that the server has read since it runs."""
        find, found = self.catalogue.adapter_registry.find, [salt]
        for known in self.known():
            for name in await self.adapters(known):
                assert known.adapters is not None
                with suppress(AdapterUnusable, AdapterNotFound):
                    await asyncio.to_thread(find, known.adapters, name)
        found += [salted(salt, adapter) for adapter in self.catalogue.adapter_registry.all_read()]
        return list(dict.fromkeys(found))

    async def embedder(self, name: str | None) -> ServedEmbedder:
        """The embedding model of that name, else the first one; loads and raises as `find`."""
        name = name and await self.untagged(name)
        model = await self._take(await self._of(name, encoders.EMBEDDING))
        assert isinstance(model, ServedEmbedder)
        return model

    async def reranker(self, name: str | None) -> ServedReranker:
        """The reranker of that name, else the first one; loads and raises as `find`. A chat model
        that is served as a reranker is asked through its `judge`."""
        name = name and await self.untagged(name)
        model = await self._take(await self._of(name, encoders.RERANKING))
        if isinstance(model, ServedModel):
            return model.judge()
        assert isinstance(model, ServedReranker)
        return model

    def keep(self, name: str, role: Role, seconds: float | None) -> None:
        """Keep a loaded model for so many seconds after its last use; see `ModelPool.keep`. It does
        nothing where autoload is off: no request could bring the model back."""
        known = self._of_role(self.split_adapter(name)[0], role)
        if known is not None and self.catalogue.autoload:
            self.pool.keep(known.wanted.key, seconds)

    def loaded(self) -> list[ServedModel]:
        """The chat models that are loaded now."""
        return [model for model in self.pool.loaded() if isinstance(model, ServedModel)]

    def engines(self) -> list[tuple[str, Status]]:
        """Name and status of each loaded chat model. At the start, while none is loaded, the one
        that is to be loaded first stands there as STARTING."""
        found = [(model.names[0], model.engine.status) for model in self.loaded()]
        first = self._of_role(None, encoders.CHAT)
        if not (found or self.started or first is None):
            found.append(
                (first.names[0], Status(EngineState.STARTING, Load(0, 0, 0), time.monotonic()))
            )
        return found

    async def known_as(self, name: str) -> ModelListing:
        """The listing of the model of that name, whatever its role. It loads nothing, and the
        current exchange is about that model. Raises ModelNotFound."""
        name = await self.untagged(name)
        found = await self._sought(lambda: next(iter(self._candidates(name)), None))
        if found is None:
            raise self._unknown(name, "")
        current().about = label_of(found.names[0])
        return found

    async def named(self, name: str) -> tuple[ModelListing, str | None]:
        """The listing of the model that a name means, as `known_as`, and the adapter of a name as
        MODEL:ADAPTER. Raises ModelNotFound, and AdapterNotFound where it has no such adapter."""
        model, adapter = await self._split_known(await self.untagged(name))
        known = await self.known_as(model or name)
        if adapter is not None and adapter not in (NONE, *await self.adapters(known)):
            raise AdapterNotFound(
                f"The model '{known.names[0]}' has no adapter '{adapter[:200]}'.", param="model"
            )
        return known, adapter

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
        """What `find` finds, after another look at the disk unless that is loaded: its files may
        have gone."""
        found = find()
        if found is None or not self._is_loaded(found):
            await self.catalogue.refresh()
            found = find()
        return found

    def _of_role(self, name: str | None, role: Role) -> ModelListing | None:
        """The known model of that name and role; without a name the first one of that role."""
        known = self.catalogue.known() if name is None else self._candidates(name)
        return next((k for k in known if k.role is role), None)

    def _candidates(self, name: str) -> list[ModelListing]:
        """The known models of that name, or of the hub's name for which it stands as in `pull`; one
        whose full name it is goes before others."""
        meant = self.catalogue.resolve_alias(name)
        found = self._named(meant)
        if not found and (of_hub := hub_name(meant)) is not None:
            found = self._named(str(of_hub))
        return found

    def _named(self, name: str) -> list[ModelListing]:
        found = [known for known in self.known() if name in known.names]
        return sorted(found, key=lambda known: known.names[0] != name)

    def _missing(self, name: str | None, role: Role) -> OmlxError:
        names = [n for k in self.catalogue.known() if k.role is role for n in k.names]
        hint = encoders.hint_for(role, names)
        if name is None:
            return BadRequest(f"{role.route} needs {role.noun}. {hint}", param="model")
        if role is not encoders.CHAT and self.split_adapter(name)[1] is not None:
            return BadRequest(f"{role.route} knows no adapters: name a model alone", param="model")
        roles = list(dict.fromkeys(k.role for k in self._candidates(name)))
        if roles:
            return encoders.for_another_route(name, roles, role, hint)
        return self._unknown(name, hint)

    def _unknown(self, name: str, hint: str) -> LoadFailed | ModelNotFound:
        meant = self.catalogue.resolve_alias(name)
        called = (meant, str(hub_name(meant)), meant.rpartition(":")[0])
        for model in self.catalogue.broken():
            if not set(model.names).isdisjoint(called):
                return LoadFailed(f"the model '{name[:200]}' can't be loaded: {model.problem}")
        why = f": the name stands for '{meant}', which is not here" if meant != name else ""
        if (of_hub := hub_name(meant)) is not None:
            hint = f"If the hub has it, `omlx-server pull {of_hub}` gets it. {hint}"
        told = f"The model '{name[:200]}' does not exist{why}."
        parts = (told, about_away(self.catalogue.away), hint)
        return ModelNotFound(" ".join(filter(None, parts)), param="model")
