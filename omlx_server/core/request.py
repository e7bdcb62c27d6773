"""A client's request and its events. What is made for each token is not frozen, for speed."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, NewType, Protocol

from omlx_server.core.adapters import Adapter, salted
from omlx_server.core.clients import Owner
from omlx_server.core.images import FIRST_ID, ImageSpan
from omlx_server.core.speculation.methods import Mode

RequestId = NewType("RequestId", str)
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model thinks; "none" is not at all."""


NOT_FINITE = -1


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    MEMORY = "memory"
    GRAMMAR = "grammar"
    MODEL_ERROR = "model_error"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The numbers from `low`, or above it, to `high`."""

    low: float
    high: float
    above_low: bool = False

    def hold(self, value: float) -> bool:
        """Return whether a value is in the range."""
        return self.low <= value <= self.high and not (self.above_low and value == self.low)


@dataclass(frozen=True, slots=True)
class SamplingPresets:
    """The parameters that a model's files can preset, with their bounds."""

    temperature: Annotated[float, NumberRange(0, 2)] = 1.0
    top_p: Annotated[float, NumberRange(0, 1, above_low=True)] = 1.0
    top_k: Annotated[int, NumberRange(0, 1_000_000)] = 0
    min_p: Annotated[float, NumberRange(0, 1)] = 0.0
    repetition_penalty: Annotated[float, NumberRange(0, 10, above_low=True)] = 1.0


@dataclass(frozen=True, slots=True)
class RequestDefaults(SamplingPresets):
    """The values of fields that a request leaves out. `max_tokens` 0 means no limit."""

    max_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    system: str | None = None
    reasoning_effort: Effort | None = None
    thinking_budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(SamplingPresets):
    """Validated parameters. `seed` and a token's position alone decide its random number."""

    max_tokens: int
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    top_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether to take the likeliest token: a lower temperature would overflow float32."""
        return self.temperature < 1e-5


class Constraint(Protocol):
    """A grammar's state. Each row advances a copy, on one thread at a time."""

    @property
    def done(self) -> bool:
        """Whether no token may follow."""

    @property
    def problem(self) -> str | None: ...

    @property
    def too_costly(self) -> bool: ...

    @property
    def takes_drafts(self) -> bool:
        """Whether a copy is cheap."""

    def copy(self) -> "Constraint": ...

    def mask(self) -> bytes:
        """Return the allowed next tokens as little-endian u32 words: bit t % 32 of word t // 32.
        Never all zeros without a `problem`."""

    def take(self, token: int) -> None: ...

    def forced(self) -> Sequence[int]:
        """Return the usual spelling of what must come next."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt. Raises ValueError for no tokens, an image at the end, or no answer."""

    id: RequestId
    tokens: tuple[int, ...]
    sampling: SamplingParams
    n: int = 1  # answers
    priority: int = 0  # the lowest goes first
    arrived: float = 0.0  # seconds of the server's clock
    deadline: float | None = None  # the same
    salt: bytes = b""
    checkpoints_at: tuple[int, ...] = ()
    constraint: Constraint | None = None
    owner: bytes = b""
    conversation: bytes = b""
    speculation: Mode | None = None
    images: tuple[ImageSpan, ...] = ()
    adapter: Adapter | None = None

    @property
    def block_salt(self) -> bytes:
        return salted(self.salt, self.adapter)

    @property
    def owner_path(self) -> Owner:
        return self.owner, self.conversation

    @property
    def must_be_empty(self) -> bool:
        constraint = self.constraint
        return constraint is not None and constraint.done and not constraint.problem

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("a request needs at least one token")
        if self.n < 1 or self.sampling.max_tokens < 1:
            raise ValueError("n and max_tokens must be at least 1")
        if self.tokens[-1] >= FIRST_ID:
            raise ValueError("a prompt can't end with an image")


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural log-probabilities of the raw logits."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()  # (id, value)


@dataclass(slots=True)
class TokenEvent:
    """One step's result for choice `index`: a token (not that which stops it), its end, or both."""

    request_id: RequestId
    index: int
    token: int | None = None
    logprobs: Logprobs | None = None
    finish: FinishReason | None = None
    error: str = ""
    accepted: bool = False
    rejected: int = 0


class Miss(StrEnum):
    """Why less than the whole prompt came from the prefix cache."""

    NONE = "none"
    NEW_PREFIX = "new_prefix"
    DIVERGED = "diverged"
    EVICTED = "evicted"
    NO_CHECKPOINT = "no_checkpoint"
    NAMESPACE = "namespace"
    UNREADABLE = "unreadable"
    NO_ROOM = "no_room"
    SLOW = "slow"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Restored:
    """A prompt's caches were rebuilt, in the host's time."""

    request_id: RequestId
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """The prefill of a request has begun; `known` tokens are in stored blocks."""

    request_id: RequestId
    cached: int
    known: int
    miss: Miss


@dataclass(frozen=True, slots=True)
class Rejected:
    """A refused request: the queue is full, or it could never fit (`no_room`)."""

    request_id: RequestId
    waiting: int
    retry_after: int
    no_room: str = ""


@dataclass(slots=True)
class SampledToken:
    """A token that was sampled; NOT_FINITE where the logits were no numbers."""

    id: int
    logprobs: Logprobs | None = None


@dataclass(slots=True)
class SampledRow:
    """One row's decoded tokens: one, and one for each right drafted token."""

    tokens: tuple[SampledToken, ...]
    done: bool = False
    forced: tuple[int, ...] = ()
    problem: str = ""
    too_costly: bool = False
    drafted: int = 0

    @property
    def rejected(self) -> int:
        return self.drafted - self.accepted

    @property
    def accepted(self) -> int:
        return len(self.tokens) - 1
