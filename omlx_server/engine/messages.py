"""What crosses between the asyncio thread and the mlx thread: small immutable values."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum

from omlx_server.core.cache_report import CacheReport
from omlx_server.core.cold import ColdReport
from omlx_server.core.limits import Load
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.core.request import Admission, Rejected, Request, RequestId, TokenEvent
from omlx_server.engine.jobs import Work
from omlx_server.engine.lane import Lane


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget a request, or with `index` one of its choices."""

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
class Ask:
    """Run something small on the mlx thread, between two steps; the future gets its result."""

    question: Callable[[Lane], object]
    answer: Future[object]


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a job; the future gets its result. `make` runs on the mlx thread."""

    make: Callable[[Lane], Work[object]]
    answer: Future[object]


Inbound = Submit | Cancel | Ask | Start | Stop | Wake


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is in the queue."""

    request_id: RequestId


Outbound = Accepted | Rejected | Admission | TokenEvent


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot that any thread may read. `beat` is the time.monotonic() of the last turn; `cold`
    is None without a cold tier, `memory` where it is not watched."""

    state: State
    load: Load
    beat: float
    problem: str = ""
    cache: CacheReport = field(default_factory=CacheReport)
    cold: ColdReport | None = None
    memory: MemoryReport | None = None

    def alive(self, now: float, patience: float = 30.0) -> bool:
        """Whether the engine turns: a step without a heartbeat for `patience` seconds is stuck."""
        if self.state is State.READY:
            return now - self.beat < patience
        return self.state is State.STARTING
