"""Models that are given, where a server would find them on the disk and load them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from omlx_server.api.models.listing import ModelListing, Vitals
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import (
    CHAT,
    EMBEDDING,
    RERANKING,
    Served,
    ServedEmbedder,
    ServedModel,
)
from omlx_server.core.blocks.pins import Pin, PinReport, Unpinned
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.engine.messages import Counted
from omlx_server.engine.pool.entry import ModelRequest, Rules
from omlx_server.engine.pool.pool import ModelPool
from omlx_server.models.adapters.registry import AdapterRegistry


@dataclass(frozen=True, slots=True)
class Fixed:
    """A catalogue that never changes."""

    models: tuple[ModelListing, ...] = ()
    autoload: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)
    adapter_registry: AdapterRegistry = field(default_factory=AdapterRegistry)

    def known(self) -> Sequence[ModelListing]:
        return self.models

    def broken(self) -> Sequence[ModelListing]:
        return ()

    @property
    def away(self) -> Mapping[Path, str]:
        return {}

    def resolve_alias(self, name: str) -> str:
        return self.aliases.get(name, name)

    def directory(self, key: str) -> Path | None:
        return None

    async def refresh(self, *, anew: bool = False) -> None:
        return


class Vital:
    """An engine that lives."""

    memory: MemoryReport | None = None
    counted: Mapping[str, Counted] = MappingProxyType({})
    cold: ColdReport | None = None
    device_errors: Mapping[str, int] = MappingProxyType({})

    def alive(self, now: float) -> bool:
        return True


class NothingKept:
    """The cache of no model."""

    async def clear_cold(self, salt: bytes | None) -> None:
        return

    async def save_pin(self, pin: Pin, salt: bytes) -> PinReport:
        return pin.report((), ())

    async def pins(self, salt: bytes) -> list[PinReport]:
        return []

    async def unpin(self, id: str, salt: bytes) -> Unpinned:
        return Unpinned.UNKNOWN


class _Given:
    def __init__(self, models: Sequence[Served], ready: Callable[[], Awaitable[object]]) -> None:
        self._models = models
        self._ready = ready

    async def check(self, key: str) -> None: ...

    async def load(self, key: str, note: Callable[[int], None]) -> Served:
        await self._ready()
        return self._models[int(key)]

    async def unload(self, model: Served) -> None:
        return


async def _at_once() -> None:
    return


def fixed_models(
    *models: Served,
    ready: Callable[[], Awaitable[object]] = _at_once,
    vitals: Vitals | None = None,
    patience: float = 30.0,
) -> ServedModels:
    """These and no others. Requests wait for `ready` to end, if that is within `patience`."""
    known = tuple(_known(number, model) for number, model in enumerate(models))
    pool = ModelPool[Served](_Given(models, ready), Rules, patience)
    return ServedModels(pool, Fixed(known), vitals or Vital(), NothingKept())


def _known(number: int, model: Served) -> ModelListing:
    role = EMBEDDING if isinstance(model, ServedEmbedder) else RERANKING
    if isinstance(model, ServedModel):
        return ModelListing(
            CHAT, model.names, ModelRequest(str(number), 0), 0, model.context_length
        )
    return ModelListing(role, model.names, ModelRequest(str(number), 0), 0)
