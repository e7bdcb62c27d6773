"""What the prefix cache tells of itself: counters, a snapshot for metrics, a look at one prompt."""

from collections import Counter
from dataclasses import dataclass, field, replace

from omlx_server.core.request import Miss


@dataclass(slots=True)
class CacheStats:
    """Counters since the start, in tokens unless they say otherwise."""

    queried: int = 0
    hit: int = 0
    hit_cold: int = 0
    misses: dict[Miss, int] = field(default_factory=lambda: dict.fromkeys(Miss, 0))
    evicted_blocks: int = 0
    evicted_checkpoints: int = 0


@dataclass(frozen=True, slots=True)
class CacheReport:
    """A snapshot of the prefix cache. Token counts are totals since the start."""

    nbytes: int = 0
    budget: int = 0
    blocks: int = 0
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    buffers: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    cold_hit_tokens: int = 0
    misses: tuple[tuple[str, int], ...] = ()
    evicted_blocks: int = 0
    evicted_checkpoints: int = 0
    checkpointed: bool = False

    def after(self, earlier: "CacheReport") -> "CacheReport":
        """The same with all that was counted earlier; what it holds is its own."""
        misses = Counter(dict(earlier.misses))
        misses.update(dict(self.misses))
        return replace(
            self,
            queried_tokens=self.queried_tokens + earlier.queried_tokens,
            hit_tokens=self.hit_tokens + earlier.hit_tokens,
            cold_hit_tokens=self.cold_hit_tokens + earlier.cold_hit_tokens,
            misses=tuple(misses.items()),
            evicted_blocks=self.evicted_blocks + earlier.evicted_blocks,
            evicted_checkpoints=self.evicted_checkpoints + earlier.evicted_checkpoints,
        )


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was in memory before a reset."""

    nbytes: int
    blocks: int
    checkpoints: int


@dataclass(frozen=True, slots=True)
class Probe:
    """What is known of one prompt, without using it. Positions in tokens.

    `blocks` are (start, stop) of what is in memory, `cold` of what would be read from the cold
    tier; `checkpoints` are where recurrent state is in memory; a request with this prompt would not
    compute its first `cached` tokens.
    """

    tokens: int
    cached: int
    known: int
    blocks: tuple[tuple[int, int], ...]
    checkpoints: tuple[int, ...]
    cold: tuple[tuple[int, int], ...] = ()
