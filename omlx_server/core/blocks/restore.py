"""How far a known prefix can be used: pure arithmetic over what the blocks hold.

    DELTA       every piece from 0 to the stop must have it
    WINDOW      the pieces that overlap the last `window` tokens before the stop
    CHECKPOINT  a state exactly at the stop

Matching is token-granular: the keys and values of a token do not depend on what follows, so the
first tokens of a block can be used without the rest. Recurrent state is not divisible, and a state
from later in a sequence is never restored at an earlier boundary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from omlx_server.core.blocks.block import Checkpoint, Match, PayloadId
from omlx_server.core.blocks.layout import CacheLayout, Kind


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, stop) of a sequence, out of the payload of a block that begins at start."""

    id: PayloadId
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Rebuild the caches as they were after `stop` tokens."""

    stop: int
    pieces: tuple[Piece, ...]
    checkpoint: PayloadId | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What is in memory of a sequence, and how much of that can be restored."""

    match: Match
    plan: RestorePlan | None

    @property
    def cached(self) -> int:
        """Tokens that need not be computed."""
        return self.plan.stop if self.plan else 0

    @property
    def state(self) -> Checkpoint | None:
        """The state that the plan needs."""
        restores_state = self.plan is not None and self.plan.checkpoint is not None
        return self.match.states()[self.cached] if restores_state else None


Has = Callable[[PayloadId, Kind], bool]


def plan_restore(
    pieces: Sequence[Piece],
    checkpoints: Mapping[int, PayloadId],
    layout: CacheLayout,
    limit: int,
    has: Has = lambda id, kind: True,
) -> RestorePlan | None:
    """The plan with the deepest usable stop in 1..limit, or None.

    `pieces` cover [0, depth) without gaps; `checkpoints` maps positions to states.
    """
    reach = _delta_reach(pieces, layout, has)
    for stop in _candidates(pieces, checkpoints, layout, min(reach, limit)):
        used = tuple(_cut_at(pieces, stop))
        if _window_is_there(used, layout, stop, has):
            return RestorePlan(stop, used, checkpoints.get(stop) if layout.checkpointed else None)
    return None


def find(match: Match, layout: CacheLayout, limit: int) -> Found:
    """The plan with the deepest usable stop in 1..limit for what is in memory of a sequence."""
    pieces = [Piece(block.id, block.start, block.stop) for block in match.blocks]
    if match.partial is not None:
        start = match.partial.start
        pieces.append(Piece(match.partial.id, start, start + match.shared))
    states = match.states() if layout.checkpointed else {}
    ids = {position: state.id for position, state in states.items()}
    return Found(match, plan_restore(pieces, ids, layout, limit))


def _delta_reach(pieces: Sequence[Piece], layout: CacheLayout, has: Has) -> int:
    reach = 0
    for piece in pieces:
        if Kind.DELTA in layout.kinds and not has(piece.id, Kind.DELTA):
            break
        reach = piece.stop
    return reach


def _candidates(
    pieces: Sequence[Piece], checkpoints: Mapping[int, PayloadId], layout: CacheLayout, reach: int
) -> Iterable[int]:
    """Stops to try, the deepest first."""
    if layout.checkpointed:
        return sorted((p for p in checkpoints if 0 < p <= reach), reverse=True)
    stops = {piece.stop for piece in pieces if piece.stop < reach}
    return sorted(stops | ({reach} if reach else set()), reverse=True)


def _cut_at(pieces: Sequence[Piece], stop: int) -> Iterable[Piece]:
    for piece in pieces:
        if piece.start < stop:
            yield Piece(piece.id, piece.start, min(piece.stop, stop))


def _window_is_there(pieces: Sequence[Piece], layout: CacheLayout, stop: int, has: Has) -> bool:
    if Kind.WINDOW not in layout.kinds:
        return True
    needed = (piece for piece in pieces if piece.stop > stop - layout.window)
    return all(has(piece.id, Kind.WINDOW) for piece in needed)
