"""Commands of rank 0 to its followers, which run them in order. Blocks have the same ids on
every rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Record
from omlx_server.core.memory.shape import Decode, PrefillShape
from omlx_server.core.request import SamplingParams
from omlx_server.core.step import Chunk, Join, SequenceId, Step

_GREEDY = SamplingParams(max_tokens=1, temperature=0)


@dataclass(frozen=True, slots=True)
class LaunchStep:
    step: Step


@dataclass(frozen=True, slots=True)
class Accept:
    """The result of a decode that verified drafts, for each row."""

    right: Sequence[int]
    newest: Sequence[int]


@dataclass(frozen=True, slots=True)
class Chunks:
    step: Step


@dataclass(frozen=True, slots=True)
class CutIds:
    """The ids under which a cut is kept, if it is."""

    number: int
    block: PayloadId | None
    checkpoint: PayloadId | None


@dataclass(frozen=True, slots=True)
class Drop:
    ids: Sequence[PayloadId]


@dataclass(frozen=True, slots=True)
class Tidy:
    """Free parts of runs that only dropped payloads used; without `wholly` only large ones."""

    wholly: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget all rows and prefills, and with `blocks` all payloads."""

    blocks: bool = False


@dataclass(frozen=True, slots=True)
class WritePayload:
    id: PayloadId
    record: Record


@dataclass(frozen=True, slots=True)
class ReadPayload:
    """Read this payload within `patience` seconds; `PayloadRead` answers."""

    number: int
    record: Record
    patience: float


@dataclass(frozen=True, slots=True)
class Promote:
    """Keep what a read gave under this id, or drop it."""

    number: int
    id: PayloadId | None


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget a model's blocks in the cold tier, or the descendants of these keys."""

    keys: Sequence[BlockKey] | None


@dataclass(frozen=True, slots=True)
class ClearAll:
    """Forget all models' blocks in the cold tier."""


@dataclass(frozen=True, slots=True)
class Closing:
    """Write what is queued within `seconds`, then end."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Score:
    """Feed the next slice of a prompt; an empty one ends the job."""

    number: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class OneToken: ...


@dataclass(frozen=True, slots=True)
class ProbeForward:
    kind: str
    prefill: PrefillShape | None = None
    decode: Decode | None = None


@dataclass(frozen=True, slots=True)
class Width:
    """Run a forward over this many tokens with empty caches."""

    tokens: int


@dataclass(frozen=True, slots=True)
class PayloadRead:
    """The rank has the payload, or the `reason` why not."""

    number: int
    reason: str = ""


Command = (
    LaunchStep
    | Accept
    | Chunks
    | CutIds
    | Drop
    | Tidy
    | Reset
    | WritePayload
    | ReadPayload
    | Promote
    | Clear
    | ClearAll
    | Closing
    | Score
    | OneToken
    | ProbeForward
    | Width
)


def without_samples(step: Step, drafts: Mapping[SequenceId, tuple[int, ...]]) -> Step:
    return Step(step.drops, step.tails, step.decodes, drafts, row_cuts=step.row_cuts)


def chunks_of(step: Step, left: Sequence[Chunk]) -> Step:
    """Return a step's running chunks without the tokens of contexts."""
    running = {chunk.prefill for chunk in left}
    restores = tuple(restore for restore in step.restores if restore.prefill in running)
    return Step(restores=restores, chunks=tuple(map(_chunk, left)))


def with_contexts(step: Step) -> Step:
    """Undo `chunks_of`, with contexts of the right length."""
    return replace(step, chunks=tuple(map(_chunk_with_contexts, step.chunks)))


def _chunk(chunk: Chunk) -> Chunk:
    return replace(chunk, joins=tuple(map(_join, chunk.joins)))


def _chunk_with_contexts(chunk: Chunk) -> Chunk:
    joins = (replace(join, context=(0,) * join.prompt_tokens) for join in chunk.joins)
    return replace(chunk, joins=tuple(joins))


def _join(join: Join) -> Join:
    return Join(join.id, (), len(join.context), _GREEDY, shift=join.shift)
