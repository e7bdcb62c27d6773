"""The state of one prompt in the prefix cache, and what it gets. Owned by the mlx thread."""

from dataclasses import dataclass, field

from omlx_server.core.blocks.block import Block, Checkpoint, Worth
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.restore import RestorePlan
from omlx_server.core.request import Miss


@dataclass(slots=True, eq=False)
class BlocksInUse:
    """The full blocks to which a sequence's caches refer, in order from its first token; none while
    it is not `at_work`. The first `copied` tokens may be in its caches too."""

    path: list[Block] = field(default_factory=list)
    at_work: bool = False
    copied: int = 0

    @property
    def tokens(self) -> int:
        return self.path[-1].stop if self.path else 0

    @property
    def referred(self) -> int:
        """The number of tokens that its caches certainly only refer to."""
        return max(0, self.tokens - self.copied)


@dataclass(slots=True, eq=False)
class PrefixHandle:
    """One prompt's state in the prefix cache.

    `keys` are those of its full blocks, `leased` is held for it, and it computes the blocks
    `claimed`. `known` tokens could be restored when it was queued; `checkpoints_at` are the
    positions of checkpoints to keep; `waiting`: its prefill has not begun. Without `reuses` nothing
    is restored, because something stored was unreadable. `blocks` are those its prefill's caches
    refer to.

    The cold tier is reading the keys `reading`, was `asked` so often, has brought tokens up to
    `promoted` and may still bring `room` bytes. `question` is the number of its open question, or
    0; `missed` says why not all that is stored was read.
    """

    root: BlockKey
    tokens: tuple[int, ...]
    keys: list[BlockKey]
    owner: bytes = b""
    reading: set[BlockKey] = field(default_factory=set)
    leased: list[Block | Checkpoint] = field(default_factory=list)
    claimed: list[BlockKey] = field(default_factory=list)
    checkpoints_at: dict[int, Worth] = field(default_factory=dict)
    known: int = 0
    waiting: bool = True
    reuses: bool = True
    promoted: int = 0
    room: int = 0
    question: int = 0
    asked: int = 0
    missed: Miss | None = None
    blocks: BlocksInUse = field(default_factory=BlocksInUse)

    @property
    def awaits_cold(self) -> bool:
        """Whether the cold tier still has to answer or to read for this prompt."""
        return bool(self.reading or self.question)

    def next_stop(self, position: int, grid: int) -> int:
        """Return where the chunk from `position` ends: at the next multiple of `grid`, at a
        checkpoint before it, or with the prompt. A prompt that ends within grid / 8 tokens after it
        is taken to its end, because another forward costs several times as much."""
        stop = (position // grid + 1) * grid
        stop = len(self.tokens) if len(self.tokens) <= stop + grid // 8 else stop
        return min((at for at in self.checkpoints_at if position < at < stop), default=stop)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A prefill's match in the cache. The first `known` tokens are in memory as blocks; where a
    checkpoint is missing, fewer are restored."""

    plan: RestorePlan | None
    miss: Miss
    known: int

    @property
    def cached(self) -> int:
        return self.plan.stop if self.plan else 0
