"""Limits of the scheduler, and its load."""

from dataclasses import dataclass, field

from omlx_server.core.chunk_sizes import ChunkSizes
from omlx_server.core.scheduler.grouping import Grouping
from omlx_server.core.speculation.methods import DraftVerification, Mode

SMALLEST_CHUNK = 64  # tokens


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of the scheduler, in tokens of one step."""

    max_batch_size: int = 8  # rows
    max_queue: int = 128  # requests
    prefill_chunk_tokens: int = 512  # the chunk grid, and all chunks while rows decode
    max_batched_tokens: int = 2048  # all chunks while none does
    halve_chunks_at: int | None = None  # the position of the first halving; then at each double
    decode_share: float = 0.0  # of the time, for decoding rows
    speculation: Mode = "auto"
    verify: DraftVerification = DraftVerification.ALWAYS
    most_places: int = 64  # tokens that one decode feeds, with drafts
    most_joins: int = 4  # chunks of one step while rows decode
    alone_chunk_tokens: int | None = None  # the grid while no row decodes
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
        beside, alone = self.prefill_chunk_tokens, self.alone_chunk_tokens
        return ChunkSizes(beside, beside if alone is None else alone)

    def grid_at(self, position: int, *, alone: bool = False) -> int:
        """Return the chunk size at a `position`, with or without a cache hit before it."""
        size = self.chunks.alone if alone else self.prefill_chunk_tokens
        limit = self.halve_chunks_at
        while limit and position >= limit and size > SMALLEST_CHUNK:
            size, limit = size // 2, limit * 2
        return size


@dataclass(frozen=True, slots=True)
class Load:
    """The numbers of sequences in each state."""

    waiting: int
    prefilling: int
    running: int
