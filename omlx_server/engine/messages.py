"""Immutable messages between the asyncio thread and the mlx thread."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from omlx_server.core.chunk_sizes import ChunkSizes
from omlx_server.core.experts.counts import ExpertCounts
from omlx_server.core.memory.guard import Relief
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.request import (
    Admitted,
    FinishReason,
    Rejected,
    Request,
    RequestId,
    Restored,
    TokenEvent,
)
from omlx_server.core.scheduler.limits import Load
from omlx_server.core.scheduler.watchdog import Stalls
from omlx_server.core.speculation.methods import DraftCounts
from omlx_server.core.work import Work

ModelId = int
"""Number of a loaded model; never reused."""


@dataclass(frozen=True, slots=True)
class Submit:
    model: ModelId
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a request, or with `index` one of its choices. No event follows."""

    model: ModelId
    request_id: RequestId
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread, after at most `drain_seconds` of writes to the cold tier."""

    drain_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake the thread: the cold tier has a result for it."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """Call `act` on the mlx thread."""

    act: Callable[[], object]
    answer: Future[object]


@dataclass(frozen=True, slots=True)
class StartJob:
    """Begin a job of `client`. `make` runs on the mlx thread."""

    model: ModelId
    make: Callable[[Any], Work[object]]
    client: bytes
    answer: Future[object]


class Removable(Protocol):
    @property
    def weight_bytes(self) -> int: ...
    def leave(self) -> None:
        """Release all memory, including the share of the account."""
        ...


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load a model in slices of `work`; its counters are kept under `name`."""

    model: ModelId
    work: Work[Removable]
    answer: Future[object]
    name: str = ""


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Unload a model, after at most `seconds` of writes to the cold tier."""

    model: ModelId
    seconds: float
    answer: Future[object]


Inbound = Submit | Cancel | EngineCall | StartJob | LoadModel | UnloadModel | Stop | Wake


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is queued; its first token comes within `longest_wait` seconds (0: unknown)."""

    request_id: RequestId
    longest_wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """A model has crashed for good."""

    model: ModelId
    problem: str


Outbound = Accepted | Rejected | Admitted | Restored | TokenEvent | Failed


def end_events(
    request: Request, why: str, reason: FinishReason = FinishReason.ERROR
) -> list[TokenEvent]:
    """Return the events that end all choices of a request."""
    return [TokenEvent(request.id, index, finish=reason, error=why) for index in range(request.n)]


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ImageCounts:
    computed: int = 0
    seconds: float = 0.0

    def after(self, earlier: "ImageCounts") -> "ImageCounts":
        return ImageCounts(self.computed + earlier.computed, self.seconds + earlier.seconds)


@dataclass(frozen=True, slots=True)
class Counted:
    """One model's counters over all its loads; sizes in `cache` are current."""

    cache: CacheReport = field(default_factory=CacheReport)
    reliefs: Counter[Relief] = field(default_factory=Counter)
    stalls: Stalls = field(default_factory=Stalls)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    images: ImageCounts = field(default_factory=ImageCounts)
    experts: ExpertCounts = field(default_factory=ExpertCounts)

    def after(self, earlier: "Counted") -> "Counted":
        """Return the sum with `earlier` counters."""
        return Counted(
            self.cache.after(earlier.cache),
            self.reliefs + earlier.reliefs,
            self.stalls + earlier.stalls,
            self.drafts.after(earlier.drafts),
            self.images.after(earlier.images),
            self.experts.after(earlier.experts),
        )


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot of a model. `beat` is the time of its last turn, `live` the bytes in use."""

    state: EngineState
    load: Load
    beat: float
    problem: str = ""
    counted: Counted = field(default_factory=Counted)
    live: int = 0
    oldest: Mapping[str, float] = field(default_factory=dict)
    chunks: ChunkSizes | None = None
    adapters: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request whose `choices` have not ended yet."""

    request: Request
    choices: set[int]

    def end(self, why: FinishReason, message: str) -> list[TokenEvent]:
        events = end_events(self.request, message, why)
        return [event for event in events if event.index in self.choices]
