"""Bounds of the scheduler, and how full it is. Frozen values."""

from dataclasses import dataclass, field

from omlx_server.core.chunk_sizes import ChunkSizes
from omlx_server.core.scheduler.grouping import Grouping
from omlx_server.core.speculation.methods import Mode
from omlx_server.core.speculation.verifies import Verifies

SMALLEST_CHUNK = 64


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of the scheduler. Tokens count prompt tokens of one step over all sequences.

    At most `max_batch_size` rows are computed together, and `max_queue` requests wait.
    `prefill_chunk_tokens` is the chunk grid, and the budget of a step while rows are decoding;
    `max_batched_tokens` is the budget while none is. While no row decodes and no other model is at
    work, a chunk has `alone_chunk_tokens`, a multiple of the grid; None for the grid's own size.
    Where attention takes a time that grows with depth, chunks are halved at `halve_chunks_at`
    tokens and at each double of it. While prompts are prefilled, rows that decode keep
    `decode_share` of the time. Tokens are drafted as `speculation` says. Rows may `verify` drafts
    alone or together; one decode feeds them at most `most_places` tokens, padding counted. At most
    `most_joins` prompts are prefilled in a step in which rows decode. If `fair`, owners share the
    machine (core/scheduler/order.py); else the first to come is first."""

    max_batch_size: int = 8
    max_queue: int = 128
    prefill_chunk_tokens: int = 512
    max_batched_tokens: int = 2048
    halve_chunks_at: int | None = None
    decode_share: float = 0.0
    speculation: Mode = "auto"
    verify: Verifies = Verifies.ALWAYS
    most_places: int = 64
    most_joins: int = 4
    alone_chunk_tokens: int | None = None
    fair: bool = True
    grouping: Grouping = field(default_factory=Grouping)

    def __post_init__(self) -> None:
        if min(self.max_batch_size, self.prefill_chunk_tokens, self.max_batched_tokens) < 1:
            raise ValueError("scheduler limits must be positive")
        if not self.chunks.alone or self.chunks.alone % self.prefill_chunk_tokens:
            raise ValueError("a chunk alone must be made of chunks of the grid")
        if not 0 <= self.decode_share < 1:
            raise ValueError("a share of the time is from 0 to less than 1")

    @property
    def chunks(self) -> ChunkSizes:
        """The chunk sizes at the head of a prompt."""
        alone = self.alone_chunk_tokens
        return ChunkSizes(
            self.prefill_chunk_tokens, self.prefill_chunk_tokens if alone is None else alone
        )

    def grid_at(self, position: int, *, alone: bool = False) -> int:
        """The chunk size in tokens at a `position` in a prompt, beside rows that decode or `alone`.
        It depends on nothing else, so a prompt is cut alike whether the prefix cache had its
        beginning or not. Chunks that are computed alone end where others end, too."""
        size = self.chunks.alone if alone else self.prefill_chunk_tokens
        limit = self.halve_chunks_at
        while limit and position >= limit and size > SMALLEST_CHUNK:
            size, limit = size // 2, limit * 2
        return size


@dataclass(frozen=True, slots=True)
class Load:
    """How many sequences wait, are prefilled, and are rows: for health and metrics."""

    waiting: int
    prefilling: int
    running: int
