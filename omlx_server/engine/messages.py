"""What crosses between the asyncio thread and the mlx thread: small immutable values."""

from dataclasses import dataclass
from enum import StrEnum

from omlx_server.core.request import Admission, Rejected, Request, RequestId, TokenEvent
from omlx_server.core.scheduler import Load


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
    """End the thread after the step under way. Unfinished requests get an error."""


Inbound = Submit | Cancel | Stop


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is in the queue."""

    request_id: RequestId


Outbound = Accepted | Rejected | Admission | TokenEvent


@dataclass(frozen=True, slots=True)
class CacheReport:
    """A snapshot of the prefix cache. Token counts are totals since the start."""

    nbytes: int = 0
    budget: int = 0
    blocks: int = 0
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    buffers: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    misses: tuple[tuple[str, int], ...] = ()
    evicted_blocks: int = 0
    evicted_checkpoints: int = 0


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot that any thread may read. `beat` is the time.monotonic() of the last turn."""

    state: State
    load: Load
    beat: float
    problem: str = ""
    cache: CacheReport = CacheReport()

    def alive(self, now: float, patience: float = 30.0) -> bool:
        """Whether the engine turns: a step without a heartbeat for `patience` seconds is stuck."""
        if self.state is State.READY:
            return now - self.beat < patience
        return self.state is State.STARTING
