"""What crosses between the asyncio thread and the mlx thread: small immutable values."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from omlx_server.core.chunk_sizes import ChunkSizes
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
from omlx_server.core.speculation.counts import DraftCounts
from omlx_server.core.work import Work

ModelId = int
"""The number of a loaded model. It is never used again, not even for the same model."""


@dataclass(frozen=True, slots=True)
class Submit:
    model: ModelId
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop computing a request, or with `index` one of its choices. No event follows."""

    model: ModelId
    request_id: RequestId
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread after the step under way. Unfinished requests get an error. What is in memory
    is written to the cold tier for at most `drain_seconds`."""

    drain_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake the thread, because the cold tier has read or answered something."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """Run something small on the mlx thread, between two steps; the future gets its result."""

    act: Callable[[], object]
    answer: Future[object]


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a job of `client`; the future gets its result. `make` runs on the mlx thread."""

    model: ModelId
    make: Callable[[Any], Work[object]]
    client: bytes
    answer: Future[object]


class Removable(Protocol):
    """A loaded model: an instance that generates, or an encoder."""

    @property
    def weight_bytes(self) -> int: ...
    def leave(self) -> None:
        """Let go of everything that the model holds, its share of the account too."""
        ...


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load a model, in slices of `work`. The future ends when the model can be used. Its counters
    are kept under `name`."""

    model: ModelId
    work: Work[Removable]
    answer: Future[object]
    name: str = ""


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Unload a model and give its memory back. Its blocks are written to the cold tier before, for
    at most `seconds`."""

    model: ModelId
    seconds: float
    answer: Future[object]


Inbound = Submit | Cancel | EngineCall | Start | LoadModel | UnloadModel | Stop | Wake


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is in the queue. Its first token comes in at most `longest_wait` seconds, by
    the work before it and its share of the time; 0 where that is not known."""

    request_id: RequestId
    longest_wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """A model has crashed three times within a minute: it computes nothing any more."""

    model: ModelId
    problem: str


Outbound = Accepted | Rejected | Admitted | Restored | TokenEvent | Failed


def ended(
    request: Request, why: str, reason: FinishReason = FinishReason.ERROR
) -> list[TokenEvent]:
    """The events that end each choice of a request that was not queued. `why`: the error, if it is
    one."""
    return [TokenEvent(request.id, index, finish=reason, error=why) for index in range(request.n)]


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """How many images a vision tower has computed, and how many seconds that took the mlx
    thread."""

    computed: int = 0
    seconds: float = 0.0

    def after(self, earlier: "ImageCounts") -> "ImageCounts":
        """These counters with `earlier` ones added."""
        return ImageCounts(self.computed + earlier.computed, self.seconds + earlier.seconds)


@dataclass(frozen=True, slots=True)
class Counted:
    """One model's counters since the server's start, however often it was loaded. The sizes in
    `cache` are those of now; `reliefs` says how often each relief of memory was needed, `stalls`
    how often requests waited while nothing was under way, `drafts` what was drafted, `images` what
    was seen."""

    cache: CacheReport = field(default_factory=CacheReport)
    reliefs: Counter[Relief] = field(default_factory=Counter)
    stalls: Stalls = field(default_factory=Stalls)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    images: ImageCounts = field(default_factory=ImageCounts)

    def after(self, earlier: "Counted") -> "Counted":
        """These counters with `earlier` ones added."""
        return Counted(
            self.cache.after(earlier.cache),
            self.reliefs + earlier.reliefs,
            self.stalls + earlier.stalls,
            self.drafts.after(earlier.drafts),
            self.images.after(earlier.images),
        )


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot of a model that any thread may read. `beat` is the time.monotonic() of its last
    turn; `live` is the bytes that its requests need. `oldest`: as `Scheduler.oldest`. `chunks`: the
    sizes in which it prefills prompts, once they are known. `adapters` are the names of those in
    memory."""

    state: EngineState
    load: Load
    beat: float
    problem: str = ""
    counted: Counted = field(default_factory=Counted)
    live: int = 0
    oldest: Mapping[str, float] = field(default_factory=dict)
    chunks: ChunkSizes | None = None
    adapters: tuple[str, ...] = ()


class OpenRequest:
    """A request whose end has not been sent, and its open choices."""

    def __init__(self, request: Request, choices: set[int]) -> None:
        self.request = request
        self.choices = choices

    def end(self, why: FinishReason, message: str) -> list[TokenEvent]:
        return [
            TokenEvent(self.request.id, index, finish=why, error=message)
            for index in sorted(self.choices)
        ]
