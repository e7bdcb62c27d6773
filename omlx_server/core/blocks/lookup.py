"""One prompt's state in the prefix cache, and what can be restored for it. Owned by the mlx
thread."""

from dataclasses import dataclass, field

from omlx_server.core.blocks.block import Block, CacheLayout, Checkpoint, Match, PayloadId, Worth
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.request import Miss


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, stop) of a sequence, out of a block that begins at start."""

    id: PayloadId
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """How to rebuild the caches after `stop` tokens."""

    stop: int
    pieces: tuple[Piece, ...]
    checkpoint: PayloadId | None = None


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The part of a sequence in memory, and the plan that restores it."""

    match: Match
    plan: RestorePlan | None
    checkpoint: Checkpoint | None = None

    @property
    def cached(self) -> int:
        return self.plan.stop if self.plan else 0


def find_restorable(match: Match, layout: CacheLayout, limit: int) -> PrefixMatch:
    """Return the plan that restores the most tokens, at most `limit`."""
    stop, checkpoint = min(match.depth, limit), None
    if layout.checkpointed:
        checkpoints = match.checkpoints()
        stop = max((position for position in checkpoints if position <= stop), default=0)
        checkpoint = checkpoints.get(stop)
    if stop < 1:
        return PrefixMatch(match, None)
    pieces = tuple(Piece(b.id, b.start, min(b.stop, stop)) for b in match.path if b.start < stop)
    plan = RestorePlan(stop, pieces, checkpoint.id if checkpoint else None)
    return PrefixMatch(match, plan, checkpoint)


def resumable_checkpoints(match: Match, layout: CacheLayout, tokens: int) -> list[Checkpoint]:
    """Return the checkpoints from which this prompt, or a longer one, can go on."""
    prefixes = [find_restorable(match, layout, limit) for limit in (tokens - 1, tokens)]
    checkpoints = dict.fromkeys(prefix.checkpoint for prefix in prefixes)
    return [checkpoint for checkpoint in checkpoints if checkpoint is not None]


@dataclass(slots=True, eq=False)
class BlocksInUse:
    """The full blocks to which caches refer. The first `copied` tokens may be in them too."""

    path: list[Block] = field(default_factory=list)
    at_work: bool = False
    copied: int = 0
    goes_on: bool = False  # its prompt continues an earlier sequence

    @property
    def tokens(self) -> int:
        return self.path[-1].stop if self.path else 0

    @property
    def referred(self) -> int:
        """The tokens that the caches only refer to."""
        return max(0, self.tokens - self.copied)


@dataclass(slots=True, eq=False)
class PrefixHandle:
    """One prompt's leases, and what it awaits from the cold tier."""

    root: BlockKey
    tokens: tuple[int, ...]
    keys: list[BlockKey]
    owner: bytes = b""
    reading: set[BlockKey] = field(default_factory=set)  # records that it awaits
    leased: list[Block | Checkpoint] = field(default_factory=list)
    claimed: list[BlockKey] = field(default_factory=list)  # blocks that it computes for all
    checkpoints_at: dict[int, Worth] = field(default_factory=dict)  # by position
    known: int = 0  # tokens that could be restored when it was queued
    waiting: bool = True  # until it is admitted
    reuses: bool = True  # False where blocks were unreadable: it computes all
    promoted: int = 0  # the end of what came from the cold tier
    room: int = 0  # bytes that it may still read
    question: int = 0  # the number of what it asked an unlisted store; 0 for none
    asked: int = 0  # times that something was read for it
    missed: Miss | None = None  # why not more was read
    blocks: BlocksInUse = field(default_factory=BlocksInUse)

    @property
    def awaits_cold(self) -> bool:
        return bool(self.reading or self.question)

    def next_stop(self, position: int, grid: int) -> int:
        """Return a chunk's end: at a multiple of `grid`, a checkpoint, or a prompt's near end."""
        stop = (position // grid + 1) * grid
        stop = len(self.tokens) if len(self.tokens) <= stop + grid // 8 else stop
        return min((at for at in self.checkpoints_at if position < at < stop), default=stop)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A prefill's match in the cache: its first `known` tokens are in memory as blocks."""

    plan: RestorePlan | None
    miss: Miss
    known: int

    @property
    def cached(self) -> int:
        return self.plan.stop if self.plan else 0
