"""The models that a request may name, and interfaces to their files, caches and downloads."""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from typing_extensions import TypedDict

from omlx_server.api.models.served_model import Role
from omlx_server.core.blocks.pins import Pin, PinReport, Unpinned
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.request import RequestDefaults
from omlx_server.engine.messages import Counted
from omlx_server.engine.pool.entry import ModelRequest
from omlx_server.models.adapters.registry import AdapterPlaces, AdapterRegistry
from omlx_server.models.offers.offers import ModelOffer
from omlx_server.models.progress import ProgressListener

Kind = Literal["directory", "hub", "catalogue", "unknown"]
MOST_AT_ONCE = 2
"""The most fetches at the same time."""


@dataclass(frozen=True, slots=True)
class ModelListing:
    """A model that a request may name, loaded or not.

    `load_request` is for the pool; `created` is in seconds since 1970; `token_bytes` of keys and
    values, None if unknown. `defaults` apply without a preset. `template_file` and
    `reasoning_parser` override the model's own unless empty. `problem`: why it can't be served.
    """

    role: Role
    names: tuple[str, ...]
    load_request: ModelRequest
    created: int
    context_length: int | None = None
    takes_images: bool = False
    adapters: AdapterPlaces | None = None
    presets: tuple[str, ...] = ()
    defaults: RequestDefaults = field(default_factory=RequestDefaults)
    template_file: str = ""
    reasoning_parser: str = ""
    problem: str = ""
    token_bytes: int | None = 0
    disk_bytes: int = 0
    experts: str = ""  # how many of each layer are in memory, if others stay on the disk


class Catalogue(Protocol):
    """The models that requests may name. The first of a role serves requests without a name."""

    @property
    def autoload(self) -> bool: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...
    @property
    def adapter_registry(self) -> AdapterRegistry: ...

    def known(self) -> Sequence[ModelListing]:
        """Return the models that can be served, as of the last look at the disk."""

    def broken(self) -> Sequence[ModelListing]:
        """Return the models that can't be served."""

    @property
    def away(self) -> Mapping[Path, str]:
        """Model directories that were unreadable at the last look, and why."""

    def resolve_alias(self, name: str) -> str:
        """Return the name behind an alias; any other name unchanged."""

    def directory(self, key: str) -> Path | None:
        """Return the directory of a model by its key in the pool."""

    async def refresh(self, *, anew: bool = False) -> None:
        """Look at the disk, unless that was a moment ago and `anew` is false."""


class Vitals(Protocol):
    """The latest reports of the engine."""

    @property
    def memory(self) -> MemoryReport | None: ...
    @property
    def counted(self) -> Mapping[str, Counted]:
        """Counters by model name, unloaded models included."""

    @property
    def cold(self) -> ColdReport | None: ...
    @property
    def device_errors(self) -> Mapping[str, int]:
        """How often the device failed, by class."""

    def alive(self, now: float) -> bool: ...


class CachedModels(Protocol):
    """The cached blocks and pins of all models, unloaded ones included."""

    async def clear_cold(self, salt: bytes | None) -> None:
        """Delete the cold tier's blocks of `salt`, or with None all of them."""

    async def save_pin(self, pin: Pin, salt: bytes) -> PinReport:
        """Save a tenant's new pin, and report how much of it is cached."""

    async def pins(self, salt: bytes) -> list[PinReport]:
        """Oldest first."""

    async def unpin(self, id: str, salt: bytes) -> Unpinned:
        """Returns UNKNOWN if the tenant has no such pin."""


class ModelResolved(TypedDict):
    """The model that a name stands for. `here`: it is on the disk, at `path`. `names` may be used
    in requests. `problem`: why it can't be used. `suggestions`: names near an unknown one."""

    name: str
    kind: Kind
    alias_of: str | None
    here: bool
    names: list[str]
    path: str | None
    problem: str | None
    suggestions: list[str]


class ModelFetched(TypedDict):
    """The last event: the model is here. `fetched_bytes` came over the network. `checked` is false
    where the hub could not be asked, and what was here was taken."""

    type: Literal["done"]
    model: str
    names: list[str]
    path: str
    fetched_bytes: int
    checked: bool


class ModelOffers(TypedDict):
    """Models that can be fetched. `problem`: why the hub's own are not among them."""

    models: list[ModelOffer]
    problem: str | None


class ModelFetcher(Protocol):
    """Finds, fetches and removes models. Blocking; any thread. A fetch holds a place of `free`."""

    @property
    def free(self) -> threading.BoundedSemaphore: ...

    def resolve(self, name: str) -> ModelResolved:
        """Uses no network."""

    def search(self, text: str) -> ModelOffers:
        """Return the usual models; with a text those that match, and the hub's."""

    def remove(self, name: str, in_use: Collection[Path]) -> int:
        """Remove the files of the model with this first name, and return their bytes. Raises
        ModelUnavailable, and Conflict for one of the directories `in_use`."""

    def fetch(self, name: str, progress: ProgressListener) -> ModelFetched:
        """Fetch a model and check its files. What `progress` raises ends it; a later call
        continues. Raises ModelUnavailable."""
