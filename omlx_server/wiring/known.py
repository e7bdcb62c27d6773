"""The catalogue of models that a server knows. Lives on the event loop's thread; `refresh` reads
the disk in a worker thread."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from omlx_server import clock
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served_model import CHAT, EMBEDDING, NOTHING, RERANKING, Role
from omlx_server.core.experts.budget import ExpertBudget, budget_of
from omlx_server.core.experts.files import ExpertSizes
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.core.model_files.vision import server_lacks
from omlx_server.engine.pool.entry import ModelRequest
from omlx_server.errors import ModelNotFound
from omlx_server.models.adapters.registry import AdapterPlaces, AdapterRegistry
from omlx_server.models.description import described, encoder_length
from omlx_server.models.installed import Installed, installed_models
from omlx_server.models.layout import expert_sizes, weight_bytes
from omlx_server.models.locate import Located, Places, about_away, away
from omlx_server.models.vision import has_pillow, lacks_for_images
from omlx_server.settings import Settings
from omlx_server.settings.overrides import context_of
from omlx_server.wiring.draft_model import draft_model_bytes
from omlx_server.wiring.encoders import FoundEncoders, is_encoder
from omlx_server.wiring.memory import shares_of
from omlx_server.wiring.overrides.in_force import request_defaults

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 2.0
_ROLES = {
    ModelKind.CHAT: CHAT,
    ModelKind.EMBEDDING: EMBEDDING,
    ModelKind.RERANK: RERANKING,
}


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model on disk: `loads_as` is how it is loaded, `role` its requests, `nbytes` its weights.
    `context_length` is in tokens, None if unknown; `no_images` says why it takes none."""

    located: Located
    loads_as: ModelKind
    role: Role
    nbytes: int
    context_length: int | None
    no_images: str
    recommended: Mapping[str, float]
    token_bytes: int | None = 0
    experts: ExpertSizes | None = None

    @property
    def key(self) -> str:
        """Key in the pool; models with the same key share memory."""
        return f"{self.loads_as.value}:{self.located.path}"


@dataclass(frozen=True, slots=True)
class _Disk:
    """Models on disk, usable and broken, and directories that are away."""

    sound: Sequence[KnownModel] = ()
    broken: Sequence[Installed] = ()
    away: Mapping[Path, str] = field(default_factory=dict)


class KnownModels:
    """The catalogue: models that the server was started with, then others on disk."""

    def __init__(self, settings: Settings, first: Located, found: FoundEncoders) -> None:
        self.settings = settings
        self._limit = shares_of(settings, cold=False).limit
        self._created = int(time.time())
        self._fixed = [_source(first, CHAT)]
        if found.embedder is not None:
            self._fixed.append(_source(found.embedder, EMBEDDING))
        if found.reranker is not None:
            self._fixed.append(_source(found.reranker, RERANKING))
        self._disk = _Disk(away=away(settings.models))
        _tell_away(self._disk.away)
        self._looked_at = 0.0
        self._looking = asyncio.Lock()
        self.adapter_registry = AdapterRegistry()
        self._list()

    def change(self, settings: Settings) -> None:
        """Use other settings, and read the disk at the next `refresh`."""
        self.settings = settings
        self._limit = shares_of(settings, cold=False).limit
        self._looked_at = 0.0
        self._list()

    @property
    def autoload(self) -> bool:
        return self.settings.models.autoload

    @property
    def aliases(self) -> Mapping[str, str]:
        return self.settings.models.aliases

    @property
    def pinned(self) -> Sequence[str]:
        """Names of the models that the settings pin: loaded at the start, never unloaded."""
        models = self.settings.models
        return [
            *models.pinned,
            *(name for name, override in models.overrides.items() if override.pin),
        ]

    def first(self) -> list[ModelListing]:
        return self._known[: len(self._fixed)]

    def known(self) -> Sequence[ModelListing]:
        return self._known

    def broken(self) -> Sequence[ModelListing]:
        return self._broken

    @property
    def away(self) -> Mapping[Path, str]:
        return self._disk.away

    def resolve_alias(self, name: str) -> str:
        return self.settings.models.resolve_alias(name)

    def source(self, key: str) -> KnownModel:
        """Return the model with this pool key. Raises ModelNotFound if it was removed."""
        if key not in self._sources:
            raise ModelNotFound("this model was removed from the disk")
        return self._sources[key]

    def directory(self, key: str) -> Path | None:
        source = self._sources.get(key)
        return source.located.path if source is not None else None

    async def refresh(self, *, anew: bool = False) -> None:
        async with self._looking:  # a waiting call uses this one's result
            now, models = clock.now(), self.settings.models
            is_recent = self._looked_at > 0 and now - self._looked_at < _LOOK_SECONDS
            if is_recent and not anew:
                return
            before, self._disk = self._disk, await asyncio.to_thread(_look, models)
            if self._disk.away != before.away:
                _tell_away(self._disk.away)
            if models is self.settings.models:  # else they changed meanwhile: look again
                self._looked_at = now
            self._list()

    def _list(self) -> None:
        fixed = {(source.role, source.located.path) for source in self._fixed}
        others = [s for s in self._disk.sound if (s.role, s.located.path) not in fixed]
        sources = [*self._fixed, *others]
        self._sources = {source.key: source for source in sources}
        self._known = [self._shown(source) for source in sources]
        paths = {source.located.path for source in sources}
        broken = [model for model in self._disk.broken if model.path not in paths]
        self._broken = [_unfit(model, self._created) for model in broken]

    def _shown(self, source: KnownModel) -> ModelListing:
        names = source.located.names
        overrides, models = self.settings.overrides_of(names), self.settings.models
        pinned = overrides.pin or any(models.resolve_alias(name) in names for name in models.pinned)
        ttl = models.idle_ttl_seconds if overrides.ttl is None else overrides.ttl
        budget = self._expert_budget(source)
        nbytes = source.nbytes if budget is None else budget.nbytes
        if source.loads_as is ModelKind.CHAT:
            nbytes += draft_model_bytes(source.located, self.settings)
        wanted = ModelRequest(source.key, nbytes, pinned, ttl, names[0])
        context = source.context_length
        if context is not None:
            context = context_of(overrides, context)
        size = source.nbytes
        listing = ModelListing(source.role, names, wanted, self._created, context, disk_bytes=size)
        if source.role is not CHAT:
            return listing
        return replace(
            listing,
            token_bytes=source.token_bytes,
            experts=f"{budget.slots} of {budget.experts}" if budget else "",
            takes_images=not self._why_no_images(source),
            adapters=self.adapter_places(source),
            presets=tuple(overrides.presets),
            defaults=request_defaults(source.recommended, overrides, self.settings),
            template_file=overrides.chat_template or "",
            reasoning_parser=overrides.reasoning_parser or "",
        )

    def bytes_in_memory(self, source: KnownModel) -> int:
        """Return the bytes of a model's weights, without experts that stay on the disk."""
        budget = self._expert_budget(source)
        return source.nbytes if budget is None else budget.nbytes

    def _expert_budget(self, source: KnownModel) -> ExpertBudget | None:
        overrides = self.settings.overrides_of(source.located.names)
        experts = overrides.experts, overrides.experts_memory
        return budget_of(source.nbytes, source.experts, self._limit, *experts)

    def adapter_places(self, source: KnownModel) -> AdapterPlaces | None:
        if source.role is not CHAT:
            return None
        located, directory = source.located, self.settings.adapters.directory
        served = source.key == self._fixed[0].key
        default = self.settings.default_adapter_of(located.names, served=served)
        where = Path(directory) if directory else None
        return AdapterPlaces(located.path, located.names, where, default)

    def _why_no_images(self, source: KnownModel) -> str:
        mode = self.settings.speculation_of(source.located.names).mode
        return source.no_images or server_lacks(
            enabled=self.settings.images.enabled,
            has_pillow=has_pillow(),
            uses_heads=mode == "heads",
        )


def _look(places: Places) -> _Disk:
    installed = installed_models(places)
    sound = [(Located(model.path, model.names), model) for model in installed if not model.problem]
    return _Disk(
        [_source(located, _ROLES[model.kind]) for located, model in sound],
        [model for model in installed if model.problem],
        away(places),
    )


def _unfit(model: Installed, created: int) -> ModelListing:
    role = _ROLES.get(model.kind, NOTHING)
    wanted = ModelRequest(str(model.path), model.weight_bytes, name=model.names[0])
    return ModelListing(
        role,
        model.names,
        wanted,
        created,
        model.context_length,
        problem=model.problem,
        disk_bytes=model.weight_bytes,
    )


def _tell_away(gone: Mapping[Path, str]) -> None:
    if gone:
        _log.warning("%s Its models can't be loaded now.", about_away(gone))


def _source(located: Located, role: Role) -> KnownModel:
    """Return a model for a role. A chat model that ranks is loaded as a chat model."""
    nbytes, about = weight_bytes(located.path), described(located.path)
    context = about.context_length if about else None
    recommended = about.recommended if about else {}
    no_images = lacks_for_images(located.path)
    if role is CHAT or (role is RERANKING and not is_encoder(located.path)):
        kind, kv = ModelKind.CHAT, about.token_bytes if about else None
        sizes = expert_sizes(located.path)
        return KnownModel(located, kind, role, nbytes, context, no_images, recommended, kv, sizes)
    kind = ModelKind.EMBEDDING if role is EMBEDDING else ModelKind.RERANK
    length = encoder_length(located.path)
    return KnownModel(located, kind, role, nbytes, length, no_images, recommended)
