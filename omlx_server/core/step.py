"""The scheduler's decisions and the runner's results, as plain values.

A step runs tails, drops, one decode of all live rows, row cuts, restores, chunks.

    context   = prompt tokens, then the tokens generated so far
    chunk     = context[start : start + len(tokens)], put into the caches of one prefill
    join      = after its last chunk a prefill holds context[:-1]; its rows join the live batch,
                and context[-1] is the input of their first decode
    cut       = what the caches hold of context[start : stop], kept as a block
    draft     = tokens that may follow the newest one; a decode verifies them
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from omlx_server.core.adapters import Adapter
from omlx_server.core.blocks.block import Worth
from omlx_server.core.blocks.lookup import RestorePlan
from omlx_server.core.images import ImageSpan
from omlx_server.core.request import Admitted, Constraint, RequestId, SampledRow, SamplingParams

_cut_numbers = count()


class SequenceId(NamedTuple):
    """One choice of one request."""

    request: RequestId
    choice: int


@dataclass(frozen=True, slots=True)
class Join:
    """A row that enters the live batch. Its positions are `shift` ahead."""

    id: SequenceId
    context: tuple[int, ...]
    prompt_tokens: int
    sampling: SamplingParams
    constraint: Constraint | None = None
    shift: int = 0
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Tokens [start, stop) to keep as a block, and with a `worth` the state at `stop`."""

    start: int
    stop: int
    block: bool
    worth: Worth | None
    number: int = field(default_factory=_cut_numbers.__next__, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Restore:
    prefill: SequenceId
    plan: RestorePlan


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one prefill; with `joins` the last. Its positions are `shift` ahead."""

    prefill: SequenceId
    start: int
    tokens: tuple[int, ...]
    joins: tuple[Join, ...] = ()
    cuts: tuple[Cut, ...] = ()
    restored: int = 0
    images: tuple[ImageSpan, ...] = ()
    shift: int = 0
    adapter: Adapter | None = None

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class RowCut:
    id: SequenceId
    length: int
    cut: Cut


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one turn."""

    drops: tuple[SequenceId, ...] = ()
    tails: tuple[RowCut, ...] = ()  # cut before the drops
    decodes: tuple[SequenceId, ...] = ()  # exactly the rows that are live after the drops
    drafts: Mapping[SequenceId, tuple[int, ...]] = field(default_factory=dict)
    asks: Mapping[SequenceId, int] = field(default_factory=dict)  # tokens for the drafter to add
    row_cuts: tuple[RowCut, ...] = ()  # after the decode
    restores: tuple[Restore, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    admitted: tuple[Admitted, ...] = ()
    drain_pool: bool = False

    @property
    def prefill_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)

    @property
    def verifies(self) -> bool:
        return bool(self.drafts or self.asks)


@dataclass(frozen=True, slots=True)
class ChunkFailure:
    chunk: Chunk
    message: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """Sampled tokens, and chunks that did not run: `lost` without blocks, `starved` of memory."""

    rows: Mapping[SequenceId, SampledRow] = field(default_factory=dict)
    failures: Sequence[ChunkFailure] = ()
    lost: Sequence[Chunk] = ()
    starved: Sequence[Chunk] = ()
    ends_newest: bool = False  # so that there is memory for them
    chunks_launched: bool = False
