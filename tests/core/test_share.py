"""The share of the time that rows keep, by what a machine of any speed would make of it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.scheduler.order import Shares, TimeShare

EVERY = settings(derandomize=True, max_examples=100, deadline=None)
LONG = settings(EVERY, max_examples=50)
shares = st.floats(0.01, 0.9)
durations = st.lists(
    st.tuples(st.floats(0.001, 2.0), st.floats(0.0005, 0.5)), min_size=1, max_size=60
)


def spend(share: TimeShare, turns: list[tuple[float, float]]) -> tuple[float, float]:
    """A chunk and a decode a turn, and decodes alone as long as they are owed. Seconds of both."""
    reading = decoding = 0.0
    for chunk, decode in turns:
        share.others_had(chunk)
        reading += chunk
        first = True
        while first or share.is_owed:
            share.had(decode)
            decoding += decode
            first = False
    return reading, decoding


@EVERY
@given(of=shares, turns=durations)
def test_rows_get_their_share_however_long_chunks_and_decodes_take(
    of: float, turns: list[tuple[float, float]]
) -> None:
    reading, decoding = spend(TimeShare(of), turns)
    assert decoding >= of * (reading + decoding) * (1 - 1e-9)


@EVERY
@given(of=shares, turns=durations)
def test_they_get_no_more_than_that_but_for_the_decode_that_was_begun(
    of: float, turns: list[tuple[float, float]]
) -> None:
    reading, decoding = spend(TimeShare(of), turns)
    owed = reading * of / (1 - of)
    assert decoding <= owed + sum(decode for _, decode in turns) + 1e-9


parts = st.lists(st.sampled_from([0.1, 0.25, 0.5]), min_size=2, max_size=4)
turns = st.lists(st.floats(0.01, 3.0), min_size=4, max_size=4)


@LONG
@given(parts=parts, turns=turns)
def test_each_of_several_who_always_wait_has_its_part_to_within_a_few_turns(
    parts: list[float], turns: list[float]
) -> None:
    shares, had = Shares(parts), [0.0] * len(parts)
    everybody = range(len(parts))
    while sum(had) < 200 * max(turns):
        who = shares.order(everybody)[0]
        shares.had(who, turns[who], everybody)
        had[who] += turns[who]
    for part, seconds in zip(parts, had, strict=True):
        assert abs(seconds - part / sum(parts) * sum(had)) <= len(parts) * max(turns) + 10


@LONG
@given(parts=parts, turns=turns, chance=st.randoms(use_true_random=False))
def test_nobody_who_waits_is_left_out_whoever_comes_and_goes(
    parts: list[float], turns: list[float], chance: random.Random
) -> None:
    """The last one always waits; the others at times."""
    shares, last = Shares(parts), len(parts) - 1
    since, turn = 0.0, max(turns)
    for _ in range(400):
        waiting = {last, *(one for one in range(last) if chance.random() < 0.7)}
        who = shares.order(waiting)[0]
        shares.had(who, turns[who], waiting)
        since = 0.0 if who == last else since + turns[who]
        assert since <= (2 * turn + 10) * sum(parts) / parts[last] + turn


def test_who_is_first_is_served_by_default_and_the_others_when_they_are_owed_a_turn() -> None:
    shares = Shares((0.5, 0.5))
    assert shares.order([1, 0]) == [0, 1] and shares.order([1]) == [1]
    shares.had(1, 4.0, [1])
    for _ in range(3):
        shares.had(0, 2.0, [0, 1])
        assert shares.order([0, 1]) == [0, 1]
    shares.had(0, 2.0, [0, 1])
    assert shares.order([0, 1]) == [1, 0]


def test_who_was_not_there_has_no_claim() -> None:
    shares = Shares((0.5, 0.5))
    shares.had(0, 100.0, [0])
    assert shares.order([0, 1]) == [0, 1]


def test_a_part_is_that_of_those_who_are_there() -> None:
    shares = Shares((0.5, 0.25, 0.25))
    assert [shares.part(1, [1]), shares.part(1, [0])] == pytest.approx([1, 1 / 3])


def test_a_share_of_nothing_never_keeps_a_prompt_waiting() -> None:
    share = TimeShare(0.0)
    share.others_had(1000)
    assert not share.is_owed


def test_time_is_owed_from_the_first_chunk_on_and_until_it_was_had() -> None:
    share = TimeShare(0.25)
    owed = [share.is_owed]
    share.others_had(3.0)
    for seconds in (0.0, 0.9, 0.1):
        share.had(seconds)
        owed.append(share.is_owed)
    assert owed == [False, True, True, False]


def test_what_rows_had_beyond_their_share_is_not_saved_up() -> None:
    share = TimeShare(0.5)
    share.had(100)
    share.others_had(1)
    assert share.is_owed


def test_a_debt_to_nobody_is_forgiven() -> None:
    share = TimeShare(0.5)
    share.others_had(5)
    share.forgive()
    assert not share.is_owed


def test_a_clock_that_jumps_back_changes_nothing() -> None:
    share = TimeShare(0.5)
    share.others_had(-1)
    share.others_had(1)
    share.had(-5)
    assert share.is_owed
    share.had(1)
    assert not share.is_owed
