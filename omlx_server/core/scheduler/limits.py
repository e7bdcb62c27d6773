"""Limits of the scheduler, and its load."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from omlx_server.core.chunk_sizes import ChunkSizes
from omlx_server.core.dispatch_limit import DispatchLimit
from omlx_server.core.speculation.methods import DraftVerification, Mode
from omlx_server.core.step import Chunk

# Padding may add at most this share of a group's tokens.
_MAX_PADDING = 0.3
# Tokens by which the cached lengths of a group's rows may differ: they are left-padded.
_MAX_START_SPREAD = 256
SMALLEST_CHUNK = 64  # tokens


@dataclass(frozen=True, slots=True)
class Grouping:
    """The rules by which a model's chunks share a forward."""

    batchable: bool = True  # rows run together
    pads: bool = True  # they may differ in length, which recurrent state forbids
    most_tokens: int = 256  # longer chunks run alone
    dispatch: DispatchLimit | None = None  # of the device

    def group(self, chunks: Sequence[Chunk]) -> list[tuple[Chunk, ...]]:
        groups: list[tuple[Chunk, ...]] = []
        for chunk in sorted(chunks, key=lambda c: (len(c.joins) != 1, c.start, len(c.tokens))):
            if groups and self._may_join(groups[-1], chunk):
                groups[-1] = (*groups[-1], chunk)
            else:
                groups.append((chunk,))
        return groups

    def _may_join(self, group: Sequence[Chunk], chunk: Chunk) -> bool:
        if not self.batchable or len(chunk.joins) != 1 or len(group[0].joins) != 1:
            return False
        if not group[0].tokens or not chunk.tokens:
            return False
        if group[0].images or chunk.images or group[0].shift or chunk.shift:
            return False
        starts = [member.start for member in (*group, chunk)]
        lengths = [len(member.tokens) for member in (*group, chunk)]
        padded_tokens = max(lengths) * len(lengths)
        if max(lengths) > self.most_tokens:
            return False
        if not self.pads and min(starts) == 0 < max(starts):
            return False
        start_close = max(starts) - min(starts) <= _MAX_START_SPREAD
        if self.dispatch and not self.dispatch.allows_chunk(padded_tokens, max(starts)):
            return False
        most_padded = (1 + _MAX_PADDING * self.pads) * sum(lengths)
        return start_close and padded_tokens <= most_padded


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of the scheduler, in tokens of one step."""

    max_batch_size: int = 8  # rows
    max_queue: int = 128  # requests
    prefill_chunk_tokens: int = 512  # the chunk grid, and all chunks while rows decode
    max_batched_tokens: int = 2048  # all chunks while none does
    halve_chunks_at: int | None = None  # the position of the first halving; then at each double
    dispatch: DispatchLimit | None = None  # for which chunks are halved too
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
        pace = self.dispatch.pace if self.dispatch else None
        return ChunkSizes(beside, beside if alone is None else alone, pace=pace)

    def with_half_dispatches(self) -> "SchedulerLimits":
        """Return limits by which half as much is submitted at once."""
        if self.dispatch is not None:
            return replace(self, dispatch=self.dispatch.halved())
        at = self.halve_chunks_at
        return replace(self, halve_chunks_at=max(1, at // 2)) if at else self

    def grid_at(self, position: int, *, alone: bool = False) -> int:
        """Return the chunk size at a `position`, with or without a cache hit before it."""
        size = self.chunks.alone if alone else self.prefill_chunk_tokens
        limit = self.halve_chunks_at
        while limit and position >= limit and size > SMALLEST_CHUNK:
            size, limit = size // 2, limit * 2
        if self.dispatch is not None:
            while size > SMALLEST_CHUNK and not self.dispatch.allows_chunk(size, position):
                size //= 2
        return size


@dataclass(frozen=True, slots=True)
class Load:
    """The numbers of sequences in each state."""

    waiting: int
    prefilling: int
    running: int
