"""How far a known prefix can be used: pure arithmetic over what the blocks hold.

    DELTA, WINDOW  up to any token in a block: a block keeps all that these layers need
    CHECKPOINT     at the position of a checkpoint only

Matching is token-granular: the keys and values of a token do not depend on what follows, so the
first tokens of a block can be used without the rest. Recurrent state is not divisible, and a
checkpoint from later in a sequence is never restored at an earlier boundary."""

from dataclasses import dataclass

from omlx_server.core.blocks.block import Checkpoint, Match, PayloadId
from omlx_server.core.blocks.cache_layout import CacheLayout


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, stop) of a sequence, out of the payload of a block that begins at start."""

    id: PayloadId
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """How to rebuild the caches as they were after `stop` tokens: from these pieces of blocks, and
    from a checkpoint where the layout needs one."""

    stop: int
    pieces: tuple[Piece, ...]
    checkpoint: PayloadId | None = None


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What is in memory of a sequence (`match`), how to restore it (`plan`; None if nothing can be
    restored), and the checkpoint that the plan needs."""

    match: Match
    plan: RestorePlan | None
    checkpoint: Checkpoint | None = None

    @property
    def cached(self) -> int:
        """The number of tokens that need not be computed."""
        return self.plan.stop if self.plan else 0


def find(match: Match, layout: CacheLayout, limit: int) -> PrefixMatch:
    """What a prefill can use of a `match`: the plan with the most tokens, at least 1 and at most
    `limit`."""
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


def to_go_on_from(match: Match, layout: CacheLayout, tokens: int) -> list[Checkpoint]:
    """The checkpoints from which a prompt of `tokens` tokens can go on, or a longer one: its last
    token is computed in any case, so that a checkpoint after it serves longer ones."""
    found = (find(match, layout, limit).checkpoint for limit in (tokens - 1, tokens))
    return list(dict.fromkeys(checkpoint for checkpoint in found if checkpoint is not None))
