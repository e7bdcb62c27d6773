"""Commands of rank 0 to its followers, run in order. Blocks have one id on all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Record
from omlx_server.core.memory.kv import Decode, PrefillShape
from omlx_server.core.request import SamplingParams
from omlx_server.core.step import Chunk, Join, SequenceId, Step

_GREEDY = SamplingParams(max_tokens=1, temperature=0)


@dataclass(frozen=True, slots=True)
class LaunchStep:
    step: Step  # its decode


@dataclass(frozen=True, slots=True)
class Accept:
    """The result of a decode that verified drafts, for each row."""

    right: Sequence[int]  # how many of its drafted tokens were right
    newest: Sequence[int]  # its last token


@dataclass(frozen=True, slots=True)
class Chunks:
    step: Step  # its chunks


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
    """Forget a model's blocks in the cold tier, or these keys and their descendants."""

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


_StepCommand = LaunchStep | Accept | Chunks | CutIds | Drop | Tidy | Reset
_ColdCommand = WritePayload | ReadPayload | Promote | Clear | ClearAll
Command = _StepCommand | _ColdCommand | Closing | Score | OneToken | ProbeForward | Width


def without_samples(step: Step, drafts: Mapping[SequenceId, tuple[int, ...]]) -> Step:
    """Return what followers need of a decode."""
    return Step(step.drops, step.tails, step.decodes, drafts, row_cuts=step.row_cuts)


def chunks_of(step: Step, chunks: Sequence[Chunk]) -> Step:
    """Return those `chunks` of a step that run, without the tokens of contexts."""
    running = {chunk.prefill for chunk in chunks}
    restores = tuple(restore for restore in step.restores if restore.prefill in running)
    return Step(restores=restores, chunks=tuple(map(_chunk_without_contexts, chunks)))


def with_contexts(step: Step) -> Step:
    """Undo `chunks_of`, with contexts of the right length."""
    return replace(step, chunks=tuple(map(_chunk_with_contexts, step.chunks)))


def _chunk_without_contexts(chunk: Chunk) -> Chunk:
    return replace(chunk, joins=tuple(map(_join_without_context, chunk.joins)))


def _chunk_with_contexts(chunk: Chunk) -> Chunk:
    joins = (replace(join, context=(0,) * join.prompt_tokens) for join in chunk.joins)
    return replace(chunk, joins=tuple(joins))


def _join_without_context(join: Join) -> Join:
    return Join(join.id, (), len(join.context), _GREEDY, shift=join.shift)
