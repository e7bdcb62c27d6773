"""What the prefix cache reports: what it holds and has counted, and what it has of one prompt."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from omlx_server.core.blocks.block import Block, Held
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.blocks.restore import PrefixMatch


@dataclass(slots=True)
class CacheReport:
    """What the prefix cache holds now, and what it has counted since the start: tokens that were
    looked up and found, prompts by the reason why no more of them was restored, evictions. Of
    `nbytes` bytes `in_use` are used by sequences at work, and do not count for the budget. The
    cache counts in a report of its own, and hands out copies."""

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
        """This report with the counters of an `earlier` one added. What is held, in bytes, blocks
        and buffers, stays that of this report."""
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
    """What was evicted to make room, or what was in memory before a reset."""

    nbytes: int
    blocks: int
    checkpoints: int

    @classmethod
    def all(cls, there: Sequence[Held]) -> "Dropped":
        """All of these blocks and checkpoints."""
        blocks = sum(isinstance(held, Block) for held in there)
        return cls(sum(held.size.nbytes for held in there), blocks, len(there) - blocks)


@dataclass(frozen=True, slots=True)
class PromptReport:
    """What both tiers have of one prompt. Positions are in tokens.

    `blocks` are (start, stop) of what is in memory, `cold` of what would be read from the cold
    tier; `checkpoints` are where recurrent state is in memory, and the first `known` tokens are in
    blocks there. A request with this prompt would not compute its first `cached` tokens.
    """

    tokens: int
    cached: int
    known: int
    blocks: tuple[tuple[int, int], ...]
    checkpoints: tuple[int, ...]
    cold: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(
        cls, tokens: Sequence[int], found: PrefixMatch, recalled: Sequence[tuple[Record, int]]
    ) -> "PromptReport":
        """The probe of what was `found` in memory and of the records that would be `recalled` from
        the cold tier, each with the position up to which the prompt has its tokens."""
        match = found.match
        return cls(
            tokens=len(tokens),
            cached=max([found.cached, *(stop for _, stop in recalled[-1:])]),
            known=match.depth,
            blocks=tuple((block.start, min(block.stop, match.depth)) for block in match.path),
            cold=tuple((r.start, stop) for r, stop in recalled if r.part is RecordKind.BLOCK),
            checkpoints=tuple(sorted(match.checkpoints())),
        )
