"""Which experts of a layer are in memory, over random forwards."""

import random

import pytest

from omlx_server.core.experts.slots import ExpertPass, ExpertSlots

EXPERTS = 24


def run(slots: ExpertSlots, one: ExpertPass) -> set[int]:
    """Do a pass as a layer does; return its slots."""
    for slot in one.loads.values():
        slots.empty(slot)
    for expert, slot in one.loads.items():
        slots.fill(slot, expert)
    return {slots.slot_of[expert] for expert in one.experts}


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 23, 24])
def test_every_forward_computes_each_expert_once_and_reads_what_is_missing(count: int) -> None:
    slots, rng = ExpertSlots(count), random.Random(count)
    for _ in range(300):
        uses = dict.fromkeys(rng.sample(range(EXPERTS), rng.randint(1, EXPERTS)), 1)
        missing = uses.keys() - slots.slot_of.keys()
        passes = slots.passes(uses)
        slots.use(uses)
        assert sorted(e for one in passes for e in one.experts) == sorted(uses)
        assert sorted(e for one in passes for e in one.loads) == sorted(missing)
        for one in passes:
            assert len(set(one.loads.values())) == len(one.loads)
            run(slots, one)
        assert sorted(slots.slot_of.values()) == sorted(set(slots.slot_of.values()))


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_pass_does_not_read_into_the_slots_of_the_one_before(count: int) -> None:
    """So its experts are read while those are computed. All experts are in passes of misses."""
    slots = ExpertSlots(count)
    for _ in range(3):
        before = set[int]()
        for number, one in enumerate(slots.passes(range(EXPERTS))):
            if number > 1:  # the first may be of experts that are in memory, in any slot
                assert before.isdisjoint(one.loads.values())
            before = run(slots, one)


def test_the_most_used_stay() -> None:
    slots, rng = ExpertSlots(8), random.Random(1)
    usual = range(6)
    for _ in range(400):
        uses = {rng.choice(usual): 1, rng.choice(usual): 1, rng.randrange(6, EXPERTS): 1}
        for one in slots.passes(uses):
            run(slots, one)
        slots.use(uses)
    assert set(usual) <= slots.slot_of.keys()


def test_what_is_used_no_more_goes() -> None:
    slots = ExpertSlots(4)
    for first in (0, 4):
        for _ in range(300):
            uses = dict.fromkeys(range(first, first + 4), 1)
            for one in slots.passes(uses):
                run(slots, one)
            slots.use(uses)
    assert set(slots.slot_of) == {4, 5, 6, 7}


def test_half_of_the_slots_at_most_are_filled_ahead_and_none_that_is_wanted_goes() -> None:
    slots = ExpertSlots(4)
    for slot, expert in enumerate((3, 5, 7, 9)):
        slots.fill(slot, expert)
    ahead = slots.ahead([5, 9, 11, 12, 13, 11])
    assert list(ahead) == [11, 12]
    assert sorted(ahead.values()) == [0, 2]
    assert ExpertSlots(1).ahead([1]) == {}


def test_scores_stay_finite() -> None:
    slots = ExpertSlots(2)
    for number in range(60_000):
        slots.use({number % 3: 1})
    slots.fill(0, 1)
    slots.fill(1, 7)
    assert slots.passes([2]) == [ExpertPass([2], {2: 1})]  # 7 was never used
