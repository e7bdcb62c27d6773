"""The commands of rank 0 to the other ranks, its followers. Each does them in the order in which
rank 0 does the same: with its own part of the model. Plain values.

Rank 0 has the requests, the scheduler, the index of blocks and the sampling. The others have no
samples: a decode's newest tokens reach them inside its forward, and what a draft was worth by
`Accept`. A block has the same id on every rank, and each rank its own part of what it holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Record
from omlx_server.core.memory.shape import Decode, PrefillShape
from omlx_server.core.request import SamplingParams
from omlx_server.core.step import Chunk, Cut, Join, RowCut, SequenceId, Step

_GREEDY = SamplingParams(max_tokens=1, temperature=0)


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """The tails, drops, decode and row cuts of a step. Its drafts are what rank 0 verifies."""

    step: Step


@dataclass(frozen=True, slots=True)
class Accept:
    """The result of a decode that verified drafts, of the last `LaunchStep`: for each row, how many
    tokens of its draft were right, and its newest token."""

    right: Sequence[int]
    newest: Sequence[int]


@dataclass(frozen=True, slots=True)
class Chunks:
    """The restores and chunks of a step."""

    step: Step


@dataclass(frozen=True, slots=True)
class CutIds:
    """What the cut with this number has become: a block and a checkpoint with these ids. What has
    no id is not kept."""

    number: int
    block: PayloadId | None
    checkpoint: PayloadId | None


@dataclass(frozen=True, slots=True)
class Drop:
    """These payloads leave the memory."""

    ids: Sequence[PayloadId]


@dataclass(frozen=True, slots=True)
class Tidy:
    """Free the parts of runs that only dropped payloads used. Without `wholly`, and while sequences
    run, only where that is much of a run."""

    wholly: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """All rows and prefills are forgotten, and with `blocks` all payloads in memory."""

    blocks: bool = False


@dataclass(frozen=True, slots=True)
class WritePayload:
    """This payload goes to the cold tier under this record."""

    id: PayloadId
    record: Record


@dataclass(frozen=True, slots=True)
class ReadPayload:
    """The payload of this record is to be read from the cold tier: `PayloadRead` answers it. After
    `patience` seconds it is of no use. No other read has the same `number`."""

    number: int
    record: Record
    patience: float


@dataclass(frozen=True, slots=True)
class Promote:
    """What a read gave becomes the payload with this id; without one it is not kept."""

    number: int
    id: PayloadId | None


@dataclass(frozen=True, slots=True)
class Clear:
    """The cold tier forgets all blocks of the model, or those that descend from these keys."""

    keys: Sequence[BlockKey] | None


@dataclass(frozen=True, slots=True)
class ClearAll:
    """The cold tier forgets all blocks of all models."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The server ends: what is queued for the cold tier is written, for so many seconds at most,
    and then the rank ends."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Score:
    """Feed the next slice of a prompt whose own log-probabilities are asked for. `number` is that
    of the job. A slice without tokens ends the job: its caches are freed."""

    number: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class OneToken:
    """A forward of one token with empty caches."""


@dataclass(frozen=True, slots=True)
class ProbeForward:
    """A forward of the bench, of this kind and with one of these shapes
    (compute/planning/probe.py)."""

    kind: str
    prefill: PrefillShape | None = None
    decode: Decode | None = None


@dataclass(frozen=True, slots=True)
class Width:
    """A forward over so many tokens with empty caches, as measured for drafts."""

    tokens: int


@dataclass(frozen=True, slots=True)
class PayloadRead:
    """What a rank answers to `ReadPayload`: that it has the payload, or the `reason` why not."""

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
    """The decode of a step, which verifies these drafts, as other ranks need it: without what
    samples, and the objects of the scheduler."""
    tails, row_cuts = (tuple(map(_row_cut, cuts)) for cuts in (step.tails, step.row_cuts))
    return Step(step.drops, tails, step.decodes, drafts, row_cuts=row_cuts)


def chunks_of(step: Step, left: Sequence[Chunk]) -> Step:
    """Those of a step's chunks that run, with their restores, as other ranks need them: without
    sampling, constraints and the tokens of contexts."""
    running = {chunk.prefill for chunk in left}
    restores = tuple(restore for restore in step.restores if restore.prefill in running)
    return Step(restores=restores, chunks=tuple(map(_chunk, left)))


def with_contexts(step: Step) -> Step:
    """The step of `chunks_of`, whose contexts have their lengths again. Their tokens are 0:
    what rank 0 samples is added to that."""
    return replace(step, chunks=tuple(map(_chunk_with_contexts, step.chunks)))


def _chunk(chunk: Chunk) -> Chunk:
    joins = tuple(map(_join, chunk.joins))
    return replace(chunk, joins=joins, cuts=tuple(map(_cut, chunk.cuts)))


def _chunk_with_contexts(chunk: Chunk) -> Chunk:
    joins = (replace(join, context=(0,) * join.prompt_tokens) for join in chunk.joins)
    return replace(chunk, joins=tuple(joins))


def _join(join: Join) -> Join:
    return Join(join.id, (), len(join.context), _GREEDY, shift=join.shift)


def _row_cut(wanted: RowCut) -> RowCut:
    return replace(wanted, cut=_cut(wanted.cut))


def _cut(cut: Cut) -> Cut:
    return replace(cut, source=None)
