"""What the scheduler decides and what the runner reports back: plain values.

A step is executed in this order: drops, then one decode of all live rows, then the chunks.

    context   = prompt tokens, then the tokens generated so far
    chunk     = context[start : start + len(tokens)], put into the caches of one prefill
    join      = after its last chunk a prefill holds context[:-1]; its rows join the live batch,
                and context[-1] is the input of their first decode

So every sampled token comes out of the one decode forward, the first of a prompt too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from omlx_server.core.request import RequestId, SampledRow, SamplingParams


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


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one prefill. With `joins` it is the last piece, and these rows join."""

    prefill: SequenceId
    start: int
    tokens: tuple[int, ...]
    joins: tuple[Join, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the engine. `decodes` are exactly the rows that are live after `drops`."""

    drops: tuple[SequenceId, ...] = ()
    decodes: tuple[SequenceId, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    @property
    def prefill_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class ChunkFailure:
    """A chunk that raised. Its prefill is forgotten by the runner; other work went on."""

    chunk: Chunk
    message: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: one sampled token for each decoded row, and the chunks that failed."""

    rows: Mapping[SequenceId, SampledRow] = field(default_factory=dict)
    failures: tuple[ChunkFailure, ...] = ()
