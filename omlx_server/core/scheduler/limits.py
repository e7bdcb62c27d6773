"""Limits of the scheduler, and its load."""

from dataclasses import dataclass, field

from omlx_server.core.chunk_sizes import ChunkSizes
from omlx_server.core.scheduler.grouping import Grouping
from omlx_server.core.speculation.methods import DraftVerification, Mode

SMALLEST_CHUNK = 64


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of the scheduler, in prompt tokens of one step.

    `prefill_chunk_tokens` is the chunk grid, and a step's budget while rows decode. Chunks are
    halved at `halve_chunks_at` tokens and each double. Decoding rows keep `decode_share` of the
    time. One decode feeds at most `most_places` tokens.
    """

    max_batch_size: int = 8
    max_queue: int = 128
    prefill_chunk_tokens: int = 512
    max_batched_tokens: int = 2048
    halve_chunks_at: int | None = None
    decode_share: float = 0.0
    speculation: Mode = "auto"
    verify: DraftVerification = DraftVerification.ALWAYS
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
        alone = self.alone_chunk_tokens
        return ChunkSizes(
            self.prefill_chunk_tokens, self.prefill_chunk_tokens if alone is None else alone
        )

    def grid_at(self, position: int, *, alone: bool = False) -> int:
        """Return the chunk size at a `position`, with or without a cache hit before it."""
        size = self.chunks.alone if alone else self.prefill_chunk_tokens
        limit = self.halve_chunks_at
        while limit and position >= limit and size > SMALLEST_CHUNK:
            size, limit = size // 2, limit * 2
        return size


@dataclass(frozen=True, slots=True)
class Load:
    waiting: int
    prefilling: int
    running: int
