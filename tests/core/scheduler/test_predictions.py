"""How long prompts take: by their depth, with what is done beside them, as it was of late."""

import random

import pytest

from omlx_server.core.request import RequestId
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.predictions import Predictions, PrefillPace
from omlx_server.core.scheduler.sequence import Sequence
from omlx_server.core.step import Chunk, SequenceId
from tests.core.scheduler.prompts import prefill
from tests.core.simulator import make_request


def chunk(start: int, tokens: int) -> Chunk:
    return Chunk(SequenceId(RequestId("r"), 0), start, (7,) * tokens)


def read(pace: PrefillPace, start: int, tokens: int, seconds: float) -> None:
    pace.note_chunks(seconds, [chunk(start, tokens)])


def test_a_wait_is_told_only_when_enough_was_measured() -> None:
    predictions = Predictions(SchedulerLimits())
    read(predictions.pace, 0, 2047, 1.0)
    assert not predictions.are_known
    read(predictions.pace, 0, 1, 1.0)
    assert predictions.are_known


def test_a_pace_is_that_of_late() -> None:
    pace = PrefillPace()
    for seconds in (1.0, 2.0):
        for _ in range(1000):
            read(pace, 0, 100, seconds)
    assert pace.seconds(0, 100) == pytest.approx(2.0, rel=0.02)


def test_prompts_of_any_depth_are_told_by_those_of_others() -> None:
    """What a few of up to 3,000 tokens took says what one of 6,000 will take."""

    def took(start: int, stop: int) -> float:
        return (stop - start) * (0.003 + 2e-6 * (start + stop) / 2)

    pace, rng = PrefillPace(), random.Random(1)
    for _ in range(8):
        start, end = 0, rng.randrange(100, 3000)
        while start < end:
            stop = min(end, start + rng.choice((128, 256)))
            read(pace, start, stop - start, took(start, stop) * rng.uniform(0.9, 1.1))
            start = stop
    assert pace.seconds(0, 6000) == pytest.approx(took(0, 6000), rel=0.1)
    assert pace.seconds(5500, 6000) == pytest.approx(took(5500, 6000), rel=0.1)


def test_a_token_never_takes_less_at_a_greater_depth_nor_less_than_nothing() -> None:
    quicker, steeper = PrefillPace(), PrefillPace()
    read(quicker, 0, 100, 2.0)
    read(quicker, 900, 100, 1.0)
    assert quicker.seconds(900, 1000) == quicker.seconds(0, 100) == pytest.approx(1.5)
    read(steeper, 0, 100, 0.0001)
    read(steeper, 100, 100, 0.9)
    assert steeper.seconds(0, 1) > 0
    assert steeper.seconds(0, 200) == pytest.approx(0.9, rel=0.1)


def test_short_prompts_do_not_make_a_long_one_look_endless() -> None:
    pace = PrefillPace()
    for start in range(9):
        read(pace, start, 1, 0.1 + start / 10)
    assert pace.seconds(0, 10_000) <= 10_000 * 16 * 0.5


def known() -> Predictions:
    """A token of a prompt takes 0.1 s, a decode of four rows 0.2 s, an answer has 10 tokens."""
    predictions = Predictions(SchedulerLimits(max_batch_size=4, prefill_chunk_tokens=8))
    read(predictions.pace, 0, 4096, 409.6)
    for _ in range(1000):
        predictions.note_decode(0.2, 4)
        predictions.note_answer(10)
    return predictions


def test_the_work_of_a_prompt_is_its_tokens_and_its_answers() -> None:
    predictions = known()
    assert predictions.seconds_left(prefill("a", 21)) == pytest.approx(2.0 + 5 * 0.05)
    cached = prefill("c", 21)
    cached.expected = 16
    assert predictions.seconds_left(cached) == pytest.approx(0.4 + 5 * 0.05)


def test_an_answer_that_is_longer_than_the_mean_is_taken_to_be_half_done() -> None:
    predictions = known()
    request = make_request("a", 9, 1000)
    row = Sequence(SequenceId(request.id, 0), request)
    left = []
    for tokens in (0, 4, 10, 100, 990):
        row.output[:] = [7] * tokens
        left.append(predictions.answer_seconds(row) / 0.05)
    assert left == pytest.approx([10, 6, 10, 100, 10])


def test_a_first_token_takes_the_prompt_and_the_decodes_beside_it() -> None:
    """Three chunks, a decode after each and one more; and a moment for a row to be free."""
    assert known().first_token_seconds(prefill("a", 21)) == pytest.approx(2.0 + 4 * 0.2 + 1.0 / 4)
