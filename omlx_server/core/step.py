"""What the scheduler decides and what the runner reports back: plain values.

A step is executed in this order: drops, one decode of all live rows, row cuts, restores, chunks.

    context   = prompt tokens, then the tokens generated so far
    chunk     = context[start : start + len(tokens)], put into the caches of one prefill
    join      = after its last chunk a prefill holds context[:-1]; its rows join the live batch,
                and context[-1] is the input of their first decode
    cut       = what the caches hold of context[start : stop], kept as a block

So every sampled token comes out of the one decode forward, the first of a prompt too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from omlx_server.core.blocks.block import Size, Worth
from omlx_server.core.blocks.restore import RestorePlan
from omlx_server.core.request import Admission, Constraint, RequestId, SampledRow, SamplingParams


class SequenceId(NamedTuple):
    """One choice of one request."""

    request: RequestId
    choice: int


@dataclass(frozen=True, slots=True)
class Join:
    """A row that enters the live batch. `prompt_tokens` of `context` are the client's."""

    id: SequenceId
    context: tuple[int, ...]
    prompt_tokens: int
    sampling: SamplingParams
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Keep tokens [start, stop) as a block; with `worth`, the recurrent state at `stop` too.

    Without `block` only the state is wanted. `source` knows the tokens; it is the scheduler's.
    """

    start: int
    stop: int
    block: bool
    worth: Worth | None
    source: object = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Restore:
    """Rebuild the caches of a prefill from the prefix cache."""

    prefill: SequenceId
    plan: RestorePlan


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one prefill. With `joins` it is the last piece, and these rows join."""

    prefill: SequenceId
    start: int
    tokens: tuple[int, ...]
    joins: tuple[Join, ...] = ()
    cuts: tuple[Cut, ...] = ()

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class RowCut:
    """A cut of a live row that has `length` tokens."""

    id: SequenceId
    length: int
    cut: Cut


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the engine. `decodes` are exactly the rows that are live after `drops`. A row is
    fed its newest token, and what `feeds` has for it after that.

    `tails` are cut before the drops, `row_cuts` after the decode. With `drain_pool` freed buffers
    go back to the machine before anything runs.
    """

    drops: tuple[SequenceId, ...] = ()
    tails: tuple[RowCut, ...] = ()
    decodes: tuple[SequenceId, ...] = ()
    feeds: Mapping[SequenceId, tuple[int, ...]] = field(default_factory=dict)
    row_cuts: tuple[RowCut, ...] = ()
    restores: tuple[Restore, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    admissions: tuple[Admission, ...] = ()
    drain_pool: bool = False

    @property
    def prefill_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Stored:
    """A cut that was made, and what its block and its state take."""

    cut: Cut
    block: Size | None
    state: Size | None


@dataclass(frozen=True, slots=True)
class ChunkFailure:
    """A chunk that raised. Its prefill is forgotten by the runner; other work went on."""

    chunk: Chunk
    message: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: one sampled token for each decoded row, and the chunks that failed.

    With `chunks_done` its chunks have run and what they cut is kept. `lost` chunks could not run,
    because what the prefix cache had for them turned out unreadable; for `starved` ones the machine
    had no memory.
    """

    rows: Mapping[SequenceId, SampledRow] = field(default_factory=dict)
    failures: tuple[ChunkFailure, ...] = ()
    lost: tuple[Chunk, ...] = ()
    starved: tuple[Chunk, ...] = ()
    chunks_done: bool = False
