"""The restore planner against the definition: try every stop, ask for everything it needs."""

import random

import pytest

from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.layout import CacheLayout, Kind
from omlx_server.core.blocks.restore import Piece, RestorePlan, plan_restore

DELTA = CacheLayout(frozenset({Kind.DELTA}), 4)
WINDOW = CacheLayout(frozenset({Kind.DELTA, Kind.WINDOW}), 4, window=6)
ONLY_WINDOW = CacheLayout(frozenset({Kind.WINDOW}), 4, window=3)
HYBRID = CacheLayout(frozenset({Kind.DELTA, Kind.CHECKPOINT}), 4)
EVERYTHING = CacheLayout(frozenset(Kind), 4, window=9)
LAYOUTS = (DELTA, WINDOW, ONLY_WINDOW, HYBRID, EVERYTHING)


def pieces(*lengths: int) -> list[Piece]:
    found, at = [], 0
    for number, length in enumerate(lengths):
        found.append(Piece(PayloadId(number), at, at + length))
        at += length
    return found


def naive_stop(
    parts: list[Piece],
    states: dict[int, PayloadId],
    layout: CacheLayout,
    limit: int,
    held: set[tuple[PayloadId, Kind]],
) -> int:
    """The deepest stop at which every kind of layer finds what it needs; 0 when there is none."""
    depth = parts[-1].stop if parts else 0
    for stop in range(min(limit, depth), 0, -1):
        token_kinds = {
            token: {
                kind
                for part in parts
                for kind in layout.kinds
                if part.start <= token < part.stop and (part.id, kind) in held
            }
            for token in range(stop)
        }
        delta = Kind.DELTA not in layout.kinds or all(Kind.DELTA in k for k in token_kinds.values())
        recent = range(max(0, stop - layout.window), stop)
        window = Kind.WINDOW not in layout.kinds or all(
            Kind.WINDOW in token_kinds[token] for token in recent
        )
        state = not layout.checkpointed or stop in states
        if delta and window and state:
            return stop
    return 0


@pytest.mark.parametrize("seed", range(10))
def test_the_plan_is_the_deepest_that_is_possible(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        layout = rng.choice(LAYOUTS)
        parts = pieces(*([4] * rng.randrange(5)), *rng.choice([[], [1], [3]]))
        depth = parts[-1].stop if parts else 0
        states = {p: PayloadId(100 + p) for p in range(1, depth + 1) if rng.random() < 0.3}
        share = rng.choice([1.0, 0.8, 0.5])
        held = {(part.id, kind) for part in parts for kind in Kind if rng.random() < share}
        limit = rng.randrange(depth + 3)
        plan = plan_restore(parts, states, layout, limit, lambda id, kind: (id, kind) in held)  # noqa: B023
        assert (plan.stop if plan else 0) == naive_stop(parts, states, layout, limit, held)
        if plan:
            _check_pieces(plan, parts)
            wanted = states[plan.stop] if layout.checkpointed else None
            assert plan.checkpoint == wanted


def _check_pieces(plan: RestorePlan, parts: list[Piece]) -> None:
    """They cover [0, stop) without gaps and go no further."""
    assert [piece.start for piece in plan.pieces] == [
        part.start for part in parts if part.start < plan.stop
    ]
    assert plan.pieces[-1].stop == plan.stop
    for before, after in zip(plan.pieces, plan.pieces[1:], strict=False):
        assert before.stop == after.start


def test_a_state_is_never_used_at_another_boundary() -> None:
    states = {3: PayloadId(103), 9: PayloadId(109)}
    plan = plan_restore(pieces(4, 4), states, HYBRID, 8)
    assert plan is not None
    assert (plan.stop, plan.checkpoint) == (3, 103)
    assert plan_restore(pieces(4, 4), {9: PayloadId(109)}, HYBRID, 8) is None


def test_the_last_block_is_used_in_part() -> None:
    plan = plan_restore(pieces(4, 4), {}, DELTA, 6)
    assert plan == RestorePlan(6, (Piece(PayloadId(0), 0, 4), Piece(PayloadId(1), 4, 6)))


def test_old_blocks_may_have_lost_their_window_parts() -> None:
    held = {(PayloadId(i), Kind.DELTA) for i in range(4)} | {(PayloadId(3), Kind.WINDOW)}
    held.add((PayloadId(2), Kind.WINDOW))
    plan = plan_restore(pieces(4, 4, 4, 4), {}, WINDOW, 16, lambda id, kind: (id, kind) in held)
    assert plan is not None and plan.stop == 16
    held.remove((PayloadId(2), Kind.WINDOW))
    assert not plan_restore(pieces(4, 4, 4, 4), {}, WINDOW, 16, lambda id, kind: (id, kind) in held)


def test_nothing_known_is_no_plan() -> None:
    assert plan_restore([], {}, DELTA, 5) is None
    assert plan_restore(pieces(4), {}, DELTA, 0) is None
