"""The models that a request may name, loaded or not, and what is known of them all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from omlx_server.api.models.encoders import Role
from omlx_server.core.blocks.pins import Pin, PinReport, Unpinned
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.request import RequestDefaults
from omlx_server.engine.messages import Counted
from omlx_server.engine.pool.entry import ModelRequest
from omlx_server.models.adapters.registry import AdapterPlaces, AdapterRegistry


@dataclass(frozen=True, slots=True)
class ModelListing:
    """A model that a request may name, loaded or not. `wanted` is what the pool needs to load it.
    `context_length` in tokens, None where its files do not tell; `created` in seconds since 1970.
    `takes_images`: whether its files, and the settings, let it take images. `adapters` says where
    its adapters are; None where it can have none. `presets` are the names that requests to a chat
    model may choose from; `defaults` counts for those that choose none. `template_file` is the path
    of the chat template that stands for the model's own, and `reasoning_parser` the parser of
    thoughts that stands for that of its template; each is empty where the settings name none.
    `problem` says why the model can't be served, and is empty when it can.
    """

    role: Role
    names: tuple[str, ...]
    wanted: ModelRequest
    created: int
    context_length: int | None = None
    takes_images: bool = False
    adapters: AdapterPlaces | None = None
    presets: tuple[str, ...] = ()
    defaults: RequestDefaults = field(default_factory=RequestDefaults)
    template_file: str = ""
    reasoning_parser: str = ""
    problem: str = ""


class Catalogue(Protocol):
    """The models that requests may name. A request without a name gets the first known model of the
    role that it needs."""

    @property
    def autoload(self) -> bool: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...
    @property
    def adapter_registry(self) -> AdapterRegistry: ...

    def known(self) -> Sequence[ModelListing]:
        """The models that can be served, as the last look at the disk has found them."""

    def broken(self) -> Sequence[ModelListing]:
        """The other models there, each with its `problem`."""

    @property
    def away(self) -> Mapping[Path, str]:
        """The directories of models that could not be read at the last look, and why."""

    def resolve_alias(self, name: str) -> str:
        """The name for which an alias stands; any other name is returned as it is."""

    def directory(self, key: str) -> Path | None:
        """Where the files of a known model are, by its key in the pool; None if it is not known."""

    async def refresh(self, *, anew: bool = False) -> None:
        """Look at the disk again, unless that was a moment ago; with `anew` in any case."""


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


class CachedModels(Protocol):
    """The cached blocks and pins of all models, also of models that are not loaded."""

    async def clear_cold(self, salt: bytes | None) -> None:
        """Delete the blocks in the cold tier: those of `salt`, or with None all of them."""

    async def pinned(self, pin: Pin, salt: bytes) -> PinReport:
        """Save a pin that a model has just made, as one of the tenant with this salt, and report
        how much of it is cached."""

    async def pins(self, salt: bytes) -> list[PinReport]:
        """The pins of the tenant with this salt, the oldest first."""

    async def unpin(self, id: str, salt: bytes) -> Unpinned:
        """End a pin of the tenant with this salt. Returns UNKNOWN where it has no such pin."""
