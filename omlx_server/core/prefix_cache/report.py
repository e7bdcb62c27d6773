"""Reports of the prefix cache."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from omlx_server.core.blocks.block import Block, CacheEntry
from omlx_server.core.blocks.lookup import PrefixMatch
from omlx_server.core.blocks.record import Record, RecordKind


@dataclass(slots=True)
class CacheReport:
    """Contents and counters. `in_use` bytes do not count for the budget."""

    nbytes: int = 0
    in_use: int = 0
    budget: int = 0
    blocks: int = 0
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    buffers: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    cold_hit_tokens: int = 0
    misses: dict[str, int] = field(default_factory=dict)
    evicted_blocks: int = 0
    evicted_checkpoints: int = 0
    checkpointed: bool = False

    def after(self, earlier: "CacheReport") -> "CacheReport":
        misses = Counter(earlier.misses)
        misses.update(self.misses)
        return replace(
            self,
            queried_tokens=self.queried_tokens + earlier.queried_tokens,
            hit_tokens=self.hit_tokens + earlier.hit_tokens,
            cold_hit_tokens=self.cold_hit_tokens + earlier.cold_hit_tokens,
            misses=misses,
            evicted_blocks=self.evicted_blocks + earlier.evicted_blocks,
            evicted_checkpoints=self.evicted_checkpoints + earlier.evicted_checkpoints,
        )


@dataclass(frozen=True, slots=True)
class Dropped:
    """The blocks and checkpoints that were dropped from memory."""

    nbytes: int
    blocks: int
    checkpoints: int

    @classmethod
    def all(cls, entries: Sequence[CacheEntry]) -> "Dropped":
        blocks = sum(isinstance(entry, Block) for entry in entries)
        return cls(sum(entry.size.nbytes for entry in entries), blocks, len(entries) - blocks)


@dataclass(frozen=True, slots=True)
class PromptReport:
    """The cached parts of one prompt, in tokens."""

    tokens: int
    cached: int  # that would not be computed
    known: int  # in blocks in memory
    blocks: tuple[tuple[int, int], ...]
    checkpoints: tuple[int, ...]
    cold: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(
        cls, tokens: Sequence[int], prefix: PrefixMatch, recalled: Sequence[tuple[Record, int]]
    ) -> "PromptReport":
        match = prefix.match
        return cls(
            tokens=len(tokens),
            cached=max([prefix.cached, *(stop for _, stop in recalled[-1:])]),
            known=match.depth,
            blocks=tuple((block.start, min(block.stop, match.depth)) for block in match.path),
            cold=tuple((r.start, stop) for r, stop in recalled if r.part is RecordKind.BLOCK),
            checkpoints=tuple(sorted(match.checkpoints())),
        )
