"""What a client asked for and what became of it, as values that any thread may read. Nothing
changes after creation, but for a row's own copy of a `Constraint`, on one thread at a time. What is
made for each token is not frozen, because that takes more than twice as long to make."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, NewType, Protocol

from omlx_server.core.adapters import Adapter, salted
from omlx_server.core.images import FIRST_ID, ImageSpan
from omlx_server.core.speculation.methods import Mode
from omlx_server.core.virtual_times import Owner

RequestId = NewType("RequestId", str)
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to think; "none" is not at all."""


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
class NumberRange:
    """A range of numbers from `low` to `high`, both included; `low` is not where `above_low`."""

    low: float
    high: float
    above_low: bool = False

    def hold(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.above_low and value == self.low)


@dataclass(frozen=True, slots=True)
class SamplingPresets:
    """The sampling parameters that the makers of a model and the owner of a server may preset, with
    the API's defaults and bounds. The code that reads such presets takes the fields from here."""

    temperature: Annotated[float, NumberRange(0, 2)] = 1.0
    top_p: Annotated[float, NumberRange(0, 1, above_low=True)] = 1.0
    top_k: Annotated[int, NumberRange(0, 1_000_000)] = 0
    min_p: Annotated[float, NumberRange(0, 1)] = 0.0
    repetition_penalty: Annotated[float, NumberRange(0, 10, above_low=True)] = 1.0


@dataclass(frozen=True, slots=True)
class RequestDefaults(SamplingPresets):
    """The values for fields that a request leaves out. `max_tokens` 0: no limit but the context.
    Without a `seed` each request draws its own. `stop`: texts that end an answer. `system`: the
    text of the system message of a conversation that begins without one. `reasoning_effort` and
    `thinking_budget` (tokens) are None where the chat template decides."""

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
    """How the tokens of one sequence are chosen. Every field is already validated.

    `seed` is always set (the API draws one when the client gives none). It and a token's position
    alone decide the token's random number, so a result never depends on other rows of the batch.
    `top_logprobs` is None when no log-probabilities are wanted, else the number of alternatives.
    """

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
        """Whether the likeliest token is always taken: at temperatures below 1e-5. Dividing logits
        by a temperature close to 0 would overflow float32."""
        return self.temperature < 1e-5


class Constraint(Protocol):
    """What the tokens of an answer must obey: the state of a grammar after the tokens told to it.

    The constraint of a Request never changes. Each row tells a copy of it every token of the
    answer; a row that comes back after it was dropped tells a new copy all of them. Copies may be
    told and asked at the same time, each on one thread at a time: the mlx thread, or one it waits
    for."""

    @property
    def done(self) -> bool:
        """Whether the answer ends here, since no token may follow."""

    @property
    def problem(self) -> str | None:
        """Why no token can follow, or None. A request with a problem ends with an error."""

    @property
    def too_costly(self) -> bool:
        """Whether the `problem` is that the grammar costs too much: its author's fault."""

    @property
    def takes_drafts(self) -> bool:
        """Whether a copy costs little, as each drafted token needs one."""

    def copy(self) -> "Constraint":
        """A constraint in the same state, which changes independently of this one."""

    def mask(self) -> bytes:
        """The tokens that may come next, as little-endian u32 words: bit t % 32 of word t // 32
        allows token t. Missing words allow no token. Never all zeros without a `problem`."""

    def take(self, token: int) -> None:
        """Advance the state by a `token`, which the mask must allow."""

    def forced(self) -> Sequence[int]:
        """The usual spelling of what must come next, as far as that is known. The mask may allow
        others."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, to which `n` answers are wanted. Times are time.monotonic() seconds.

    The lowest `priority` goes first. Requests of different `salt` or `adapter` share no cached
    prefix. Those of one `owner` (a client) share its part of the machine, and those of one
    `conversation` a part of that. Up to the positions `checkpoints_at`
    in `tokens` later requests will probably repeat this one: ends of the system prompt and of
    turns. Tokens are drafted for it as `speculation` says, or with None as for the others. The
    tokens of its `images`, which are in order, are among `tokens`.
    """

    id: RequestId
    tokens: tuple[int, ...]
    sampling: SamplingParams
    n: int = 1
    priority: int = 0
    arrived: float = 0.0
    deadline: float | None = None
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
        """The salt of its blocks' keys."""
        return salted(self.salt, self.adapter)

    @property
    def owner_path(self) -> Owner:
        """Whose time it takes."""
        return self.owner, self.conversation

    @property
    def must_be_empty(self) -> bool:
        """Whether its constraint allows nothing but the end of the answer."""
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
    """Natural log-probabilities by the model's raw logits, before penalties and temperature: of the
    `chosen` token, and (token id, value) of the `top` likeliest ones."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class TokenEvent:
    """What one step gave to choice `index` of a request: a token, its end, or both.

    If a token in `stop_ids` ended the sequence it is not shown: `token` is None then. `accepted`:
    it was drafted, and right. The last event of a step says how many that were drafted were
    `rejected`.
    """

    request_id: RequestId
    index: int
    token: int | None = None
    logprobs: Logprobs | None = None
    finish: FinishReason | None = None
    error: str = ""
    accepted: bool = False
    rejected: int = 0


class Miss(StrEnum):
    """Why less than the whole prompt came from the prefix cache; NONE when all of it did."""

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
    """The caches of a prompt were rebuilt from the prefix cache. `begun` and `ended` are the
    time.monotonic() of the host's work on it; a GPU may go on for a moment after that."""

    request_id: RequestId
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """The prefill of a request has begun, with what the prefix cache had for it.

    The first `cached` tokens are not computed again; the first `known` ones are in stored blocks.
    """

    request_id: RequestId
    cached: int
    known: int
    miss: Miss


@dataclass(frozen=True, slots=True)
class Rejected:
    """The scheduler has refused a request, because `waiting` others are queued already (try again
    after `retry_after` seconds) or because it could never fit: then `no_room` says why."""

    request_id: RequestId
    waiting: int
    retry_after: int
    no_room: str = ""


@dataclass(slots=True)
class SampledToken:
    """A token that a row has sampled, with its log-probabilities if they were asked for."""

    id: int
    logprobs: Logprobs | None = None


@dataclass(slots=True)
class SampledRow:
    """One row's outcome of a decode step, as the runner reports it: at least one token, and one
    more for each drafted token that was right.

    Of a row with a constraint: `done` says that the answer ends with the last token, the `forced`
    tokens are the usual spelling of what must follow it, and a `problem` ends the row with an
    error, which is the client's fault if the grammar is `too_costly`. Of its draft `drafted` tokens
    were verified.
    """

    tokens: tuple[SampledToken, ...]
    done: bool = False
    forced: tuple[int, ...] = ()
    problem: str = ""
    too_costly: bool = False
    drafted: int = 0

    @property
    def rejected(self) -> int:
        """How many drafted tokens were wrong."""
        return self.drafted - self.accepted

    @property
    def accepted(self) -> int:
        """How many drafted tokens were right."""
        return len(self.tokens) - 1
