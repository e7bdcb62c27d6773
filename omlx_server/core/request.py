"""What a client asked for, as values. Any thread may read them; nothing changes after creation."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Protocol

RequestId = NewType("RequestId", str)


class FinishReason(StrEnum):
    """Why a sequence ended. STOP and LENGTH are answers; the others are interruptions."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    MEMORY = "memory"
    GRAMMAR = "grammar"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens of one sequence are chosen. Every field is already validated.

    `seed` is always set (the API draws one when the client gives none): with the position of a
    token it is all the randomness there is, so a result never depends on batch neighbours.
    `top_logprobs` is None when no log-probabilities are wanted, else how many alternatives.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    top_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken. Below this a division would overflow float32."""
        return self.temperature < 1e-5


class Constraint(Protocol):
    """What the tokens of an answer must obey: the state of a grammar after the tokens that it was
    told. Nobody changes that of a request; each of its rows takes a copy along, on the mlx thread,
    and tells it every token of the answer, also those of a row that comes back after it was
    dropped."""

    @property
    def done(self) -> bool:
        """Nothing may follow: the answer ends here."""

    @property
    def problem(self) -> str | None:
        """Why it can't go on, if it can't. A request with a problem ends with an error."""

    @property
    def too_costly(self) -> bool:
        """Whether the problem is what the grammar costs, which is the fault of its author."""

    def copy(self) -> "Constraint":
        """The same state, to go on by itself."""

    def mask(self) -> bytes:
        """The tokens that may come next, as little-endian u32 words: token t by bit t % 32 of word
        t // 32. Words that are missing allow nothing. Never all zeros without a `problem`."""

    def take(self, token: int) -> None:
        """Go on by a token that the mask allows."""

    def forced(self) -> Sequence[int]:
        """The tokens that must come next whatever is sampled, as many as are known."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how many answers to it are wanted. Times are time.monotonic() seconds.

    Requests of different `salt` share no cached prefix; those of one `owner` share its part of the
    machine. `marks` are positions in `tokens` up to
    which later requests will probably repeat this one: ends of the system prompt and of turns.
    """

    id: RequestId
    tokens: tuple[int, ...]
    sampling: SamplingParams
    n: int = 1
    priority: int = 0
    arrived: float = 0.0
    deadline: float | None = None
    salt: bytes = b""
    marks: tuple[int, ...] = ()
    constraint: Constraint | None = None
    owner: bytes = b""

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("a request needs at least one token")
        if self.n < 1 or self.sampling.max_tokens < 1:
            raise ValueError("n and max_tokens must be at least 1")


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-softmax of the model's raw logits, before penalties and temperature, natural log."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What one choice of a request gained in one step: a token, its end, or both.

    A token that ended the sequence by being in `stop_ids` is not shown: `token` is None then.
    """

    request_id: RequestId
    index: int
    token: int | None = None
    logprobs: Logprobs | None = None
    finish: FinishReason | None = None
    error: str = ""


class Miss(StrEnum):
    """Why less than the whole prompt came from the cache."""

    NONE = "none"
    NEW_PREFIX = "new_prefix"
    DIVERGED = "diverged"
    EVICTED = "evicted"
    NO_CHECKPOINT = "no_checkpoint"
    NAMESPACE = "namespace"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Restored:
    """What is known of a prompt was put together again; time.monotonic() of the host's work on it,
    beside which a GPU may go on for a moment."""

    request_id: RequestId
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class Admission:
    """A request's turn has come: what the prefix cache had for it.

    `cached` tokens are not computed again; the prompt shares `known` tokens with a stored one.
    """

    request_id: RequestId
    cached: int
    known: int
    miss: Miss


@dataclass(frozen=True, slots=True)
class Rejected:
    """The scheduler's refusal to take a request. `retry_after` in seconds; `no_room` is the account
    of the memory where the request could never fit."""

    request_id: RequestId
    waiting: int
    retry_after: int
    no_room: str = ""


@dataclass(frozen=True, slots=True)
class SampledRow:
    """One row's outcome of a decode step, as the runner reports it.

    Of a row with a constraint: `done` when the answer ends with this token, `forced` tokens must
    follow it, and a `problem` ends it with an error, which is the client's if its grammar is
    `too_costly`.
    """

    token: int
    logprobs: Logprobs | None = None
    done: bool = False
    forced: tuple[int, ...] = ()
    problem: str = ""
    too_costly: bool = False
