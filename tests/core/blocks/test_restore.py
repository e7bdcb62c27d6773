"""The restore planner against the definition: try every stop, ask for everything it needs."""

import random

import pytest

from omlx_server.core.blocks.block import CacheLayout, LayerKind, PayloadId, Size, Worth
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.keys import root_key
from omlx_server.core.blocks.lookup import Piece, RestorePlan, find_restorable
from tests.core.places import place

DELTA = CacheLayout(frozenset({LayerKind.DELTA}), 4)
WINDOW = CacheLayout(frozenset({LayerKind.DELTA, LayerKind.WINDOW}), 4, window=6)
ONLY_WINDOW = CacheLayout(frozenset({LayerKind.WINDOW}), 4, window=3)
HYBRID = CacheLayout(frozenset({LayerKind.DELTA, LayerKind.CHECKPOINT}), 4)
EVERYTHING = CacheLayout(frozenset(LayerKind), 4, window=9)
LAYOUTS = (DELTA, WINDOW, ONLY_WINDOW, HYBRID, EVERYTHING)

ROOT = root_key("model", b"")
SIZE = Size(1, 1)


class Known:
    """An index that has the first `depth` of the tokens 0, 1, 2 ..., and checkpoints."""

    def __init__(self, depth: int, checkpoints: list[int] | None = None) -> None:
        self.index = BlockIndex(4)
        self.blocks: list[Piece] = []
        self.checkpoints: dict[int, PayloadId] = {}
        for start in range(0, depth, 4):
            stop = min(start + 4, depth)
            id = self.index.insert(place(ROOT, range(stop)), SIZE)
            assert id is not None
            self.blocks.append(Piece(id, start, stop))
        for position in checkpoints or []:
            id = self.index.add_checkpoint(place(ROOT, range(position)), SIZE, Worth.SHARED)
            assert id is not None
            self.checkpoints[position] = id

    def plan(self, length: int, layout: CacheLayout, limit: int) -> RestorePlan | None:
        """Of a sequence that begins with so many of the tokens, and goes on otherwise."""
        tokens = (*range(length), *[99] * 5)
        found = find_restorable(self.index.match(ROOT, tokens), layout, limit)
        assert found.cached == (found.plan.stop if found.plan else 0)
        if found.checkpoint is not None:
            assert found.plan is not None and found.checkpoint.id == found.plan.checkpoint
        return found.plan

    def naive_stop(self, length: int, layout: CacheLayout, limit: int) -> int:
        """The deepest stop at which every kind of layer finds what it needs; 0 when there is
        none."""
        there = {token for block in self.blocks for token in range(block.start, block.stop)}
        for stop in range(min(limit, length), 0, -1):
            tokens = there.issuperset(range(stop))
            if tokens and (not layout.checkpointed or stop in self.checkpoints):
                return stop
        return 0


@pytest.mark.parametrize("seed", range(10))
def test_the_plan_is_the_deepest_that_is_possible(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        layout, depth = rng.choice(LAYOUTS), rng.randrange(20)
        known = Known(depth, [p for p in range(1, depth + 1) if rng.random() < 0.3])
        length, limit = rng.randrange(depth + 3), rng.randrange(depth + 3)
        plan = known.plan(length, layout, limit)
        assert (plan.stop if plan else 0) == known.naive_stop(length, layout, limit)
        if plan:
            _check_pieces(plan, known.blocks)
            wanted = known.checkpoints[plan.stop] if layout.checkpointed else None
            assert plan.checkpoint == wanted


def _check_pieces(plan: RestorePlan, blocks: list[Piece]) -> None:
    """They cover [0, stop) without gaps and go no further."""
    assert [(piece.id, piece.start) for piece in plan.pieces] == [
        (block.id, block.start) for block in blocks if block.start < plan.stop
    ]
    assert plan.pieces[-1].stop == plan.stop
    for before, after in zip(plan.pieces, plan.pieces[1:], strict=False):
        assert before.stop == after.start


def test_a_state_is_never_used_at_another_boundary() -> None:
    known = Known(12, [3, 9])
    plan = known.plan(12, HYBRID, 8)
    assert plan is not None
    assert (plan.stop, plan.checkpoint) == (3, known.checkpoints[3])
    assert Known(12, [9]).plan(12, HYBRID, 8) is None


def test_the_last_block_is_used_in_part() -> None:
    known = Known(8)
    first, second = known.blocks
    assert known.plan(8, DELTA, 6) == RestorePlan(6, (first, Piece(second.id, 4, 6)))
    assert known.plan(6, DELTA, 8) == RestorePlan(6, (first, Piece(second.id, 4, 6)))


def test_nothing_known_is_no_plan() -> None:
    assert Known(0).plan(5, DELTA, 5) is None
    assert Known(4).plan(4, DELTA, 0) is None
