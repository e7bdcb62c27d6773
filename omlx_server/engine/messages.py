"""What crosses between the asyncio thread and the mlx thread: small immutable values."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.request import (
    Admission,
    FinishReason,
    Rejected,
    Request,
    RequestId,
    Restored,
    TokenEvent,
)
from omlx_server.core.scheduler.limits import Load
from omlx_server.core.scheduler.watchdog import Stalls
from omlx_server.core.work import Work

ModelId = int
"""A model that is loaded. It is never used again for another one."""


@dataclass(frozen=True, slots=True)
class Submit:
    model: ModelId
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget a request, or with `index` one of its choices."""

    model: ModelId
    request_id: RequestId
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread after the step under way. Unfinished requests get an error. The cold tier has
    `drain_seconds` to take what is in memory."""

    drain_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Wake:
    """The cold tier has something."""


@dataclass(frozen=True, slots=True)
class Call:
    """Run something small that concerns all models, between two steps."""

    act: Callable[[], object]
    answer: Future[object]


@dataclass(frozen=True, slots=True)
class Ask:
    """Run something small on the mlx thread, between two steps; the future gets its result."""

    model: ModelId
    question: Callable[[Any], object]
    answer: Future[object]


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a job; the future gets its result. `make` runs on the mlx thread."""

    model: ModelId
    make: Callable[[Any], Work[object]]
    answer: Future[object]


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Make a model, in slices. The future ends when it is there. Under its `name` it is counted."""

    model: ModelId
    work: Work[Any]
    answer: Future[object]
    name: str = ""


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Give its memory back. The cold tier has `seconds` to take what it has kept."""

    model: ModelId
    seconds: float
    answer: Future[object]


Inbound = Submit | Cancel | Call | Ask | Start | LoadModel | UnloadModel | Stop | Wake


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is in the queue. `within` seconds its first token comes, by the work before it
    and its share of the time; 0 where that is not known."""

    request_id: RequestId
    within: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """A model crashed again and again, and turns no more."""

    model: ModelId
    problem: str


Outbound = Accepted | Rejected | Admission | Restored | TokenEvent | Failed


def ended(request: Request, why: str) -> list[TokenEvent]:
    """The end of a request that was never begun."""
    return [
        TokenEvent(request.id, index, finish=FinishReason.ERROR, error=why)
        for index in range(request.n)
    ]


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot that any thread may read. `beat` is the time.monotonic() of the last turn; `live`
    bytes its requests need. `preempted` counts sequences that went back to the queue, `stalls` how
    often requests waited while nothing was under way. `oldest`: when the oldest request came that
    waits, by the size of its prompt."""

    state: State
    load: Load
    beat: float
    problem: str = ""
    cache: CacheReport = field(default_factory=CacheReport)
    live: int = 0
    preempted: int = 0
    oldest: Mapping[str, float] = field(default_factory=dict)
    stalls: Stalls = field(default_factory=Stalls)


@dataclass(frozen=True, slots=True)
class Counted:
    """One model's counters since the server's start, however often it was loaded. What `cache`
    holds is what it holds now."""

    cache: CacheReport = field(default_factory=CacheReport)
    preempted: int = 0
    stalls: Stalls = field(default_factory=Stalls)

    def after(self, earlier: "Counted") -> "Counted":
        """The same with all that was counted earlier."""
        return Counted(
            self.cache.after(earlier.cache),
            self.preempted + earlier.preempted,
            self.stalls + earlier.stalls,
        )
