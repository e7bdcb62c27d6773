"""Who was given how much: in numbers, and what the scheduler makes of it for two who compete."""

import pytest

from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.scheduler.order import Fairness
from tests.core.clocked import Clocked, Pace
from tests.core.simulator import make_request

BUSY, OTHER = b"busy", b"other"
LIMITS = Limits(max_batch_size=4, max_queue=200, prefill_chunk_tokens=8, max_batched_tokens=8)


def test_what_was_given_is_worth_half_after_half_a_minute() -> None:
    fairness = Fairness()
    fairness.give([BUSY], 8.0, 100.0)
    assert fairness.used(BUSY, 100) == 8
    assert fairness.used(BUSY, 130) == pytest.approx(4)
    assert fairness.used(BUSY, 220) == pytest.approx(0.5)
    assert fairness.used(OTHER, 100) == 0


def test_looking_does_not_change_what_is_seen() -> None:
    fairness = Fairness()
    fairness.give([BUSY], 8.0, 0.0)
    assert [fairness.used(BUSY, at) for at in (30, 30, 60)] == pytest.approx([4, 4, 2])


def test_what_comes_later_counts_beside_what_is_left_of_before() -> None:
    fairness = Fairness()
    fairness.give([BUSY], 8.0, 0.0)
    fairness.give([BUSY], 1.0, 60.0)
    assert fairness.used(BUSY, 60) == pytest.approx(3)
    assert fairness.used(BUSY, 90) == pytest.approx(1.5)


def test_sequences_share_a_step_alike_and_an_owner_pays_for_each_of_its_own() -> None:
    fairness = Fairness()
    fairness.give([BUSY, BUSY, BUSY, OTHER], 4.0, 0.0)
    assert (fairness.used(BUSY, 0), fairness.used(OTHER, 0)) == (3, 1)


def test_who_comes_to_a_busy_machine_has_a_credit_of_a_few_seconds() -> None:
    fairness = Fairness()
    fairness.give([BUSY], 40.0, 0.0)
    fairness.compete([BUSY], 0.0)
    assert fairness.used(OTHER, 0.0) == 0
    fairness.compete([BUSY, OTHER], 0.0)
    assert (fairness.used(BUSY, 0), fairness.used(OTHER, 0)) == (40, 35)
    fairness.give([OTHER], 4.0, 0.0)
    fairness.compete([BUSY, OTHER], 0.0)
    assert fairness.used(OTHER, 0) == 39


@pytest.mark.parametrize(("owners", "seconds"), [([], 1.0), ([BUSY], 0.0), ([BUSY], -3.0)])
def test_nothing_is_given_to_nobody_or_for_no_time(owners: list[bytes], seconds: float) -> None:
    fairness = Fairness()
    fairness.give(owners, seconds, 0.0)
    assert fairness.used(BUSY, 0) == 0


def test_a_clock_that_jumps_back_makes_nobody_owe_more() -> None:
    fairness = Fairness()
    fairness.give([BUSY], 1.0, 1000.0)
    assert fairness.used(BUSY, 0) == 1


def test_thousands_of_owners_are_forgotten_when_they_count_for_nothing_but_not_before() -> None:
    fairness = Fairness()
    for number in range(1000):
        fairness.give([b"%d" % number], 1.0, number)
    assert fairness.used(b"999", 1000) == pytest.approx(2 ** (-1 / 30))
    assert fairness.used(b"800", 1000) == pytest.approx(2 ** (-200 / 30))
    assert fairness.used(b"0", 0) == 0  # else it would be the second that it was given


# -- two who compete ---------------------------------------------------------------------


def flood(run: Clocked, owner: bytes, count: int, length: int = 9) -> None:
    for number in range(count):
        name = f"{owner.decode()}{number}"
        run.send(make_request(name, length, 3, arrived=run.now, owner=owner))


def chunks_before_the_single_one(busy: bytes, other: bytes) -> int:
    """`busy` has sent fifty prompts when `other` comes with one that is twice as long."""
    run = Clocked(LIMITS, Pace(token=0.01, decode=0.001))
    flood(run, busy, 50)
    for _ in range(8):
        run.turn()
    begun = run.chunks_run
    run.send(make_request("single", 17, 3, arrived=run.now, owner=other))
    while ("single", 0) not in run.times:
        run.turn()
    return run.chunks["single", 0][0] - begun


def test_fifty_prompts_of_one_do_not_delay_the_single_one_of_another() -> None:
    assert chunks_before_the_single_one(BUSY, OTHER) <= 3  # two are its own


def test_of_one_owner_it_has_the_share_of_its_size() -> None:
    assert 3 < chunks_before_the_single_one(BUSY, BUSY) <= 8


def test_who_was_served_first_does_not_go_first_for_ever() -> None:
    """Fifty against fifty, one of them a moment later: from then on they take turns."""
    run = Clocked(LIMITS, Pace(token=0.01, decode=0.001))
    flood(run, BUSY, 50)
    run.turn()
    flood(run, OTHER, 50)
    for _ in range(60):
        run.turn()
    assert run.given(OTHER) > 1
    assert run.given(BUSY) == pytest.approx(run.given(OTHER), rel=0.2)
    run.finish()


@pytest.mark.parametrize("decode", [0.001, 0.02])
def test_two_who_are_always_busy_get_the_same_time(decode: float) -> None:
    """One sends prompts that are four times as long, the other wants longer answers."""
    run = Clocked(LIMITS, Pace(token=0.01, decode=decode))
    for turn in range(600):
        for owner, length, max_tokens in ((BUSY, 33, 2), (OTHER, 9, 6)):
            for number in range(4 - queued(run, owner)):
                name = f"{owner.decode()}-{turn}-{number}"
                run.send(make_request(name, length, max_tokens, arrived=run.now, owner=owner))
        run.turn()
    assert run.given(BUSY) == pytest.approx(run.given(OTHER), rel=0.1)


def queued(run: Clocked, owner: bytes) -> int:
    """How many requests of an owner gave no token yet."""
    return sum(
        id[0].startswith(owner.decode()) and id not in run.outputs and id not in run.finishes
        for id in run.sent
    )


@pytest.mark.parametrize(("seconds", "first"), [(1, {OTHER}), (600, {BUSY, OTHER})])
def test_what_somebody_had_long_ago_does_not_shut_him_out(seconds: int, first: set[bytes]) -> None:
    run = Clocked(LIMITS, Pace(token=0.01, decode=0.001))
    flood(run, BUSY, 60, length=33)
    while run.turn():
        pass
    had = run.given(BUSY)
    run.now += seconds
    flood(run, OTHER, 60, length=33)
    for number in range(60):
        run.send(make_request(f"again{number}", 33, 3, arrived=run.now, owner=BUSY))
    for _ in range(60):
        run.turn()
    given = {BUSY: run.given(BUSY) - had, OTHER: run.given(OTHER)}
    assert {owner for owner in given if given[owner] > 1} == first
    if len(first) == 2:
        assert given[BUSY] == pytest.approx(given[OTHER], rel=0.2)
