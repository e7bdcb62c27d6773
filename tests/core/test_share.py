"""The share of the time that rows keep, by what a machine of any speed would make of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.scheduler.order import TimeShare

EVERY = settings(derandomize=True, max_examples=100, deadline=None)
shares = st.floats(0.01, 0.9)
durations = st.lists(
    st.tuples(st.floats(0.001, 2.0), st.floats(0.0005, 0.5)), min_size=1, max_size=60
)


def spend(share: TimeShare, turns: list[tuple[float, float]]) -> tuple[float, float]:
    """A chunk and a decode a turn, and decodes alone as long as they are owed. Seconds of both."""
    reading = decoding = 0.0
    for chunk, decode in turns:
        share.serve_others(chunk)
        reading += chunk
        first = True
        while first or share.is_owed:
            share.serve(decode)
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


def test_a_share_of_nothing_never_keeps_a_prompt_waiting() -> None:
    share = TimeShare(0.0)
    share.serve_others(1000)
    assert not share.is_owed


def test_time_is_owed_from_the_first_chunk_on_and_until_it_was_had() -> None:
    share = TimeShare(0.25)
    owed = [share.is_owed]
    share.serve_others(3.0)
    for seconds in (0.0, 0.9, 0.1):
        share.serve(seconds)
        owed.append(share.is_owed)
    assert owed == [False, True, True, False]


def test_what_rows_had_beyond_their_share_is_not_saved_up() -> None:
    share = TimeShare(0.5)
    share.serve(100)
    share.serve_others(1)
    assert share.is_owed


def test_a_debt_to_nobody_is_forgiven() -> None:
    share = TimeShare(0.5)
    share.serve_others(5)
    share.forgive()
    assert not share.is_owed


def test_a_clock_that_jumps_back_changes_nothing() -> None:
    share = TimeShare(0.5)
    share.serve_others(-1)
    share.serve_others(1)
    share.serve(-5)
    assert share.is_owed
    share.serve(1)
    assert not share.is_owed
