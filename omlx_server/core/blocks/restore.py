"""Plans how much of a known prefix is restored: with recurrent state up to a checkpoint. Pure."""

from dataclasses import dataclass

from omlx_server.core.blocks.block import Checkpoint, Match, PayloadId
from omlx_server.core.blocks.cache_layout import CacheLayout


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
