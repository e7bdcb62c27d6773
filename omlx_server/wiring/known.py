"""What models a server knows of: those it was started with, and those on the disk.

Lives on the event loop's thread; looks at the disk in worker threads.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omlx_server.api.models import encoders
from omlx_server.api.models.encoders import Role
from omlx_server.api.models.served import Known
from omlx_server.compute.embed.files import max_tokens_in
from omlx_server.core.model_files.kind import Kind
from omlx_server.engine.pool.entry import Wanted
from omlx_server.errors import OmlxError
from omlx_server.models.description import describe
from omlx_server.models.kind import kind_in
from omlx_server.models.layout import weight_files
from omlx_server.models.locate import Located, installed
from omlx_server.settings import Settings
from omlx_server.wiring.encoders import FoundReaders, is_encoder

_LOOK_SECONDS = 2.0


class How(Enum):
    """What a model is loaded as."""

    LANE = "chat"
    EMBEDDER = "embedding"
    CROSS_ENCODER = "rerank"


@dataclass(frozen=True, slots=True)
class Source:
    """A model on the disk, what it is loaded as, and for which kind of requests. `nbytes` of
    weights."""

    located: Located
    how: How
    role: Role
    nbytes: int
    context_length: int | None

    @property
    def key(self) -> str:
        """One for each model in memory."""
        return f"{self.how.value}:{self.located.path}"


class KnownModels:
    """The catalogue of one server. `settings` may change while it runs."""

    def __init__(self, settings: Settings, first: Located, found: FoundReaders) -> None:
        self._settings = settings
        self._created = int(time.time())
        self._fixed = [_chat(first)]
        if found.embedder is not None:
            self._fixed.append(_embedder(found.embedder))
        if found.reranker is not None:
            self._fixed.append(_reranker(found.reranker))
        self._on_disk: list[Source] = []
        self._looked_at = 0.0
        self._looking = asyncio.Lock()
        self._tell()

    def change(self, settings: Settings) -> None:
        """Other settings from now on."""
        self._settings = settings
        self._looked_at = 0.0
        self._tell()

    # -- the catalogue -------------------------------------------------------------------

    @property
    def autoload(self) -> bool:
        return self._settings.models.autoload

    @property
    def aliases(self) -> Mapping[str, str]:
        return self._settings.models.aliases

    @property
    def max_loaded(self) -> int:
        return self._settings.models.max_loaded

    @property
    def pinned(self) -> Sequence[str]:
        """Names of models that are to be there from the start on."""
        models = self._settings.models
        return [*models.pinned, *(name for name, own in models.overrides.items() if own.pin)]

    def first(self) -> list[Known]:
        """What the server was started with."""
        return self._known[: len(self._fixed)]

    def known(self) -> Sequence[Known]:
        return self._known

    def meant(self, name: str) -> str:
        """What an alias stands for, however many lie between."""
        return self._settings.models.meant(name)

    def source(self, key: str) -> Source:
        """Where a model is. Raises KeyError for one that was never known."""
        return self._sources[key]

    async def look(self) -> None:
        async with self._looking:  # who comes meanwhile has what is found, too
            now, models = time.monotonic(), self._settings.models
            if now - self._looked_at < _LOOK_SECONDS and self._looked_at:
                return
            self._on_disk = await asyncio.to_thread(_on_disk, models.dirs, models.use_hf_cache)
            if models is self._settings.models:
                self._looked_at = now
            self._tell()

    # -- inside --------------------------------------------------------------------------

    def _tell(self) -> None:
        fixed = {(source.role, source.located.path) for source in self._fixed}
        others = [s for s in self._on_disk if (s.role, s.located.path) not in fixed]
        sources = [*self._fixed, *others]
        self._sources = {source.key: source for source in sources}
        self._known = [self._shown(source) for source in sources]

    def _shown(self, source: Source) -> Known:
        names = source.located.names
        own, models = self._settings.overrides_of(names), self._settings.models
        pinned = own.pin or any(models.meant(name) in names for name in models.pinned)
        ttl = models.idle_ttl_seconds if own.ttl is None else own.ttl
        wanted = Wanted(source.key, source.nbytes, pinned, ttl, names[0])
        context = source.context_length
        if context is not None and own.context_length is not None:
            context = min(context, own.context_length)
        return Known(source.role, names, wanted, self._created, context)


def _on_disk(dirs: Sequence[Path], use_hf_cache: bool) -> list[Source]:
    found = (_source(located) for located in installed(dirs, use_hf_cache))
    return [source for source in found if source is not None]


def _source(located: Located) -> Source | None:
    """None for what no request could be for."""
    kind = kind_in(located.path, located.names[0])
    if kind is Kind.CHAT:
        return _chat(located)
    if kind is Kind.EMBEDDING:
        return _embedder(located)
    return _reranker(located) if kind is Kind.RERANK else None


def _chat(located: Located) -> Source:
    return Source(located, How.LANE, encoders.CHAT, *_sizes(located.path))


def _embedder(located: Located) -> Source:
    nbytes, context = _sizes(located.path)
    return Source(
        located, How.EMBEDDER, encoders.EMBEDDING, nbytes, _input_length(located.path, context)
    )


def _reranker(located: Located) -> Source:
    """A language model that judges is one that chats, asked otherwise."""
    nbytes, context = _sizes(located.path)
    if not is_encoder(located.path):
        return Source(located, How.LANE, encoders.RERANKING, nbytes, context)
    length = _input_length(located.path, context)
    return Source(located, How.CROSS_ENCODER, encoders.RERANKING, nbytes, length)


def _input_length(path: Path, context: int | None) -> int | None:
    """What one input of a model that reads may have; makers say less than the model could."""
    try:
        return None if context is None else max_tokens_in(path, context)
    except OmlxError:
        return context


def _sizes(path: Path) -> tuple[int, int | None]:
    """Bytes of the weights and the context's length, as far as files tell."""
    try:
        context: int | None = describe(path).context_length
    except (OmlxError, OSError):
        context = None
    return _total(_files(path)), context


def _files(path: Path) -> list[Path]:
    try:
        return weight_files(path)
    except (OmlxError, OSError):
        return []


def _total(files: Iterable[Path]) -> int:
    try:
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0
