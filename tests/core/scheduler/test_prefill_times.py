"""How long prompts take: by their depth, with what is done beside them, as it was of late."""

import random

import pytest

from omlx_server.core.request import RequestId
from omlx_server.core.scheduler.prefill_times import Pace
from omlx_server.core.step import Chunk, SequenceId


def chunk(start: int, tokens: int) -> Chunk:
    return Chunk(SequenceId(RequestId("r"), 0), start, (7,) * tokens)


def read(pace: Pace, start: int, tokens: int, seconds: float, other: float = 0.0) -> None:
    pace.took(seconds + other, seconds, [chunk(start, tokens)], waiting=False)


def test_nothing_is_known_before_something_was_read() -> None:
    pace = Pace()
    assert (pace.seconds(0, 100), pace.is_known) == (0, False)
    read(pace, 0, 2047, 1.0)
    assert not pace.is_known
    read(pace, 0, 1, 1.0)
    assert pace.is_known


def test_a_pace_is_that_of_late() -> None:
    pace = Pace()
    for seconds in (1.0, 2.0):
        for _ in range(1000):
            read(pace, 0, 100, seconds)
    assert pace.seconds(0, 100) == pytest.approx(2.0, rel=0.02)


def test_prompts_of_any_depth_are_told_by_those_of_others() -> None:
    """What a few of up to 3,000 tokens took says what one of 6,000 will take."""

    def took(start: int, stop: int) -> float:
        return (stop - start) * (0.003 + 2e-6 * (start + stop) / 2)

    pace, rng = Pace(), random.Random(1)
    for _ in range(8):
        start, end = 0, rng.randrange(100, 3000)
        while start < end:
            stop = min(end, start + rng.choice((128, 256)))
            read(pace, start, stop - start, took(start, stop) * rng.uniform(0.9, 1.1))
            start = stop
    assert pace.seconds(0, 6000) == pytest.approx(took(0, 6000), rel=0.1)
    assert pace.seconds(5500, 6000) == pytest.approx(took(5500, 6000), rel=0.1)


def test_a_token_never_takes_less_at_a_greater_depth_nor_less_than_nothing() -> None:
    quicker, steeper = Pace(), Pace()
    read(quicker, 0, 100, 2.0)
    read(quicker, 900, 100, 1.0)
    assert quicker.seconds(900, 1000) == quicker.seconds(0, 100) == pytest.approx(1.5)
    read(steeper, 0, 100, 0.0001)
    read(steeper, 100, 100, 0.9)
    assert steeper.seconds(0, 1) > 0
    assert steeper.seconds(0, 200) == pytest.approx(0.9, rel=0.1)


def test_what_is_done_beside_it_counts() -> None:
    pace = Pace()
    assert (pace.beside(0.0), pace.beside(0.2)) == (1.0, 1.25)
    read(pace, 0, 100, 1.0, other=1.0)
    assert pace.beside(0.2) == pytest.approx(2.0)
    pace.took(1.0, 0.0, [], waiting=True)
    assert pace.beside(0.2) == pytest.approx(3.0), "prompts waited, and none was read"
    pace.took(9.0, 0.0, [], waiting=False)
    assert pace.beside(0.2) == pytest.approx(3.0), "nobody waited"
