"""The scheduler by example: who goes first, what a step may hold, what an end looks like."""

from dataclasses import replace
from typing import Any

import pytest

from omlx_server.core.blocks.block import NOTHING_KEPT, CacheLayout, LayerKind
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import (
    FinishReason,
    Rejected,
    Request,
    RequestId,
    SampledRow,
    SampledToken,
    SamplingParams,
)
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.scheduler import Scheduler
from omlx_server.core.speculation.methods import DraftVerification
from omlx_server.core.step import SequenceId, StepResult
from tests.core.simulator import ROOMY, STOP, Foreseen, Run, make_request, right_answer

LIMITS = SchedulerLimits(
    max_batch_size=4, max_queue=6, prefill_chunk_tokens=8, max_batched_tokens=32
)


def test_a_prompt_is_computed_but_for_its_last_token_which_decode_takes() -> None:
    scheduler = Scheduler(LIMITS, PrefixCache(NOTHING_KEPT, "none", ROOMY))
    scheduler.add(make_request("a", 5, 3))
    step = scheduler.schedule(0)
    assert step is not None
    [chunk] = step.chunks
    assert (chunk.start, len(chunk.tokens)) == (0, 4)
    assert [join.id for join in chunk.joins] == [SequenceId(RequestId("a"), 0)]
    assert step.decodes == ()
    following = scheduler.schedule(0)
    assert following is not None and following.decodes == (SequenceId(RequestId("a"), 0),)


def test_short_prompts_share_a_step_and_a_long_one_takes_the_grid() -> None:
    run = Run(LIMITS)
    for name, length in (("long", 21), ("b", 4), ("c", 5)):
        run.scheduler.add(make_request(name, length, 2))
    run.step(0)
    assert run.chunk_log[0] == ("b", "c", "long")
    [long] = run.device.prefills.values()
    assert len(long) == 8


def test_a_newcomer_goes_before_what_is_left_of_a_long_prompt() -> None:
    run = Run(LIMITS)
    run.scheduler.add(make_request("long", 100, 2))
    run.step(0.001)
    run.scheduler.add(make_request("short", 6, 2, arrived=0.001))
    run.step(0.001)
    assert run.chunk_log[1][0] == "short"


def test_a_long_prompt_is_not_starved_by_a_stream_of_short_ones() -> None:
    run = Run(SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=8))
    run.scheduler.add(make_request("long", 64, 1))
    for number in range(200):
        run.scheduler.add(make_request(f"s{number}", 9, 1, arrived=run.now))
        run.step()
        if ("long", 0) in run.finishes:
            return
    raise AssertionError("200 short newcomers all went before the long prompt")


def test_a_lower_priority_number_goes_first() -> None:
    run = Run(LIMITS)
    run.scheduler.add(make_request("later", 3, 1, priority=1))
    run.scheduler.add(make_request("sooner", 9, 1, priority=0))
    run.step(0)
    assert run.chunk_log[0][0] == "sooner"


def test_choices_of_one_request_share_its_prefill() -> None:
    run = Run(LIMITS)
    request = make_request("a", 9, 4, n=3)
    run.scheduler.add(request)
    run.finish()
    assert run.chunk_log.count(("a",)) == 1
    for choice in range(3):
        output, finish = right_answer(request, choice)
        assert run.outputs.get(("a", choice), []) == output
        assert run.finishes["a", choice] is finish


def test_more_choices_than_rows_are_served_in_turns() -> None:
    run = Run(LIMITS)
    request = make_request("a", 9, 4, n=11)
    run.scheduler.add(request)
    run.finish()
    assert {choice for _, choice in run.finishes} == set(range(11))


def test_who_waits_for_all_rows_gets_them_however_many_others_come() -> None:
    """The row of a long answer makes way for it, and goes on."""
    run = Run(replace(LIMITS, max_queue=99))
    run.scheduler.add(endless("a", 400))
    run.step(0)
    run.scheduler.add(make_request("wide", 3, 2, n=4))
    while ("wide", 0) not in run.outputs:
        assert run.scheduler.add(endless(f"b{run.now}", 2)) is None
        run.step(1)
        assert run.now < 30
    run.finish(2000)
    assert len(run.outputs["a", 0]) == 400


def endless(name: str, max_tokens: int) -> Request:
    """Three tokens, and no stop token."""
    request = make_request(name, 3, max_tokens)
    return replace(request, sampling=SamplingParams(max_tokens=max_tokens))


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    """Ten tokens a second, 6 x 8 before it, and a step for each answer."""
    run = Run(LIMITS)
    run.scheduler.add(make_request("first", 9, 1))
    run.step(0.8)
    run.step(0.8)
    for number in range(6):
        assert run.scheduler.add(make_request(f"r{number}", 9, 1, arrived=2.0)) is None
    rejected = run.scheduler.add(make_request("r7", 9, 1))
    assert rejected == Rejected(RequestId("r7"), waiting=6, retry_after=5)


def test_the_oldest_that_wait_are_told_by_size() -> None:
    run = Run(replace(LIMITS, max_batch_size=1))
    run.scheduler.add(endless("row", 99))
    run.step()
    for name, length, arrived in (("a", 9, 3.0), ("b", 2, 1.0), ("c", 99, 2.0)):
        run.scheduler.add(make_request(name, length, 1, arrived=arrived))
    run.step()
    assert run.scheduler.oldest() == {"short": 1.0, "long": 2.0}


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    run = Run(LIMITS)
    for name, length in (("running", 2), ("prefilling", 90), ("waiting", 95)):
        run.scheduler.add(make_request(name, length, 1000, n=2, deadline=5.5))
    while run.step():
        pass
    assert run.now < 8
    assert set(run.finishes.values()) <= {FinishReason.DEADLINE, FinishReason.STOP}
    assert len(run.finishes) == 6
    assert not run.device.rows and not run.device.prefills


def test_a_stop_token_ends_a_sequence_and_is_not_shown() -> None:
    scheduler = Scheduler(LIMITS, PrefixCache(NOTHING_KEPT, "none", ROOMY))
    scheduler.add(make_request("a", 2, 9))
    scheduler.schedule(0)
    row = SequenceId(RequestId("a"), 0)
    scheduler.schedule(0)
    assert [e.token for e in scheduler.update(StepResult({row: sampled(3)}))] == [3]
    scheduler.schedule(0)
    [end] = scheduler.update(StepResult({row: sampled(STOP)}))
    assert (end.token, end.finish) == (None, FinishReason.STOP)


def test_before_min_tokens_a_stop_token_is_a_token_like_others() -> None:
    """The sampler bans it; should it come all the same, the sequence does not end too early."""
    sampling = SamplingParams(max_tokens=9, min_tokens=1, stop_ids=frozenset({STOP}))
    scheduler = Scheduler(LIMITS, PrefixCache(NOTHING_KEPT, "none", ROOMY))
    scheduler.add(Request(RequestId("a"), (1, 2), sampling))
    scheduler.schedule(0)
    row = SequenceId(RequestId("a"), 0)
    finishes = []
    for _ in range(2):
        scheduler.schedule(0)
        finishes += [e.finish for e in scheduler.update(StepResult({row: sampled(STOP)}))]
    assert finishes == [None, FinishReason.STOP]


def test_chunks_end_on_the_absolute_grid_wherever_they_start() -> None:
    cache = PrefixCache(NOTHING_KEPT, "none", ROOMY)
    handle = cache.enter(tuple(range(29)), b"", ())
    assert [handle.next_stop(at, 8) for at in (0, 8, 11, 26)] == [8, 16, 16, 29]


def test_a_cancelled_choice_leaves_its_siblings() -> None:
    run = Run(LIMITS)
    request = make_request("a", 30, 5, n=3)
    run.scheduler.add(request)
    run.step(0)
    run.scheduler.cancel(RequestId("a"), 0)
    run.finish()
    assert set(run.finishes) == {("a", 1), ("a", 2)}
    assert run.outputs.get(("a", 2), []) == right_answer(request, 2)[0]


@pytest.mark.parametrize("bad", [{"max_batch_size": 0}, {"prefill_chunk_tokens": 0}])
def test_limits_must_be_positive(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="positive"):
        SchedulerLimits(**bad)


def test_chunks_are_halved_with_depth() -> None:
    limits = SchedulerLimits(prefill_chunk_tokens=256, halve_chunks_at=1024)
    assert [limits.grid_at(p) for p in (0, 1023, 1024, 2047, 2048, 1 << 20)] == [
        256,
        256,
        128,
        128,
        64,
        64,
    ]
    assert SchedulerLimits(prefill_chunk_tokens=512).grid_at(1 << 20) == 512


def test_chunks_that_are_computed_alone_are_halved_where_others_are() -> None:
    limits = SchedulerLimits(
        prefill_chunk_tokens=256, alone_chunk_tokens=1024, halve_chunks_at=1024
    )
    at = (0, 1023, 1024, 2047, 2048, 4096, 1 << 20)
    assert [limits.grid_at(p, alone=True) for p in at] == [1024, 1024, 512, 512, 256, 128, 64]
    assert [limits.grid_at(p) for p in at] == [256, 256, 128, 128, 64, 64, 64]


@pytest.mark.parametrize("alone", [0, 256, 500, 768])
def test_a_chunk_alone_is_made_of_whole_chunks_of_the_grid(alone: int) -> None:
    with pytest.raises(ValueError, match="made of chunks of the grid"):
        SchedulerLimits(prefill_chunk_tokens=512, alone_chunk_tokens=alone)


# -- constraints -------------------------------------------------------------------------

ROOMY_ROWS = SchedulerLimits(max_batch_size=4, prefill_chunk_tokens=32, max_batched_tokens=64)
LONG_BLOCKS = CacheLayout(frozenset({LayerKind.DELTA}), block_size=64)


def sampled(token: int, **more: Any) -> SampledRow:
    return SampledRow((SampledToken(token),), **more)


def constrained(name: str, length: int = 9, max_tokens: int = 40) -> Request:
    return make_request(name, length, max_tokens, constraint=Foreseen())


def check_answer(run: Run, request: Request) -> None:
    output, finish = right_answer(request, 0)
    assert run.outputs.get((request.id, 0), []) == output
    assert run.finishes[request.id, 0] is finish


def steps_of(*requests: Request, limits: SchedulerLimits = ROOMY_ROWS) -> tuple[int, int]:
    """How many steps they take together, and how many drafted tokens were right. All answers are
    right."""
    run = Run(limits, LONG_BLOCKS, drafts=True)
    for request in requests:
        run.scheduler.add(request)
    run.finish()
    for request in requests:
        check_answer(run, request)
    return len(run.chunk_log), run.device.accepted


def test_tokens_that_must_follow_skip_decode_steps() -> None:
    off = replace(ROOMY_ROWS, verify=DraftVerification.NEVER)
    plain, none = steps_of(constrained("x"), limits=off)
    steps, accepted = steps_of(constrained("x"))
    assert none == 0 and accepted > 8
    assert steps <= plain - accepted


def test_rows_beside_others_verify_where_the_model_can() -> None:
    others = [make_request(name, 9, 40) for name in "yz"]
    alone = replace(ROOMY_ROWS, verify=DraftVerification.ALONE)
    assert steps_of(constrained("x"), *others, limits=ROOMY_ROWS)[1] > 8
    assert steps_of(constrained("x"), *others, limits=alone)[1] == 0  # the device minds it
    assert steps_of(constrained("x"), *others, limits=replace(ROOMY_ROWS, most_places=5))[1] == 0
    assert steps_of(constrained("x"), *others, limits=replace(ROOMY_ROWS, most_places=6))[1] > 0


def test_nothing_is_drafted_for_who_does_not_want_it() -> None:
    wanted, refused = (make_request("x", 9, 60, speculation=mode) for mode in (None, "off"))
    assert steps_of(wanted)[1] > 0 and steps_of(refused)[1] == 0


def test_an_answer_that_is_complete_ends_with_its_last_token() -> None:
    run = Run(LIMITS)
    run.scheduler.add(make_request("a", 3, 9))
    run.step()
    id = SequenceId(RequestId("a"), 0)
    run.scheduler.schedule(1)
    [event] = run.scheduler.update(StepResult({id: sampled(2, done=True)}))
    assert (event.token, event.finish) == (2, FinishReason.STOP)
    assert run.scheduler.load.running == 0


def test_a_constraint_that_fails_ends_its_request_alone() -> None:
    run = Run(LIMITS)
    for name in "ab":
        run.scheduler.add(make_request(name, 3, 9))
    run.step()
    problems = {"a": "broken", "b": ""}
    rows = {SequenceId(RequestId(n), 0): sampled(2, problem=p) for n, p in problems.items()}
    run.scheduler.schedule(1)
    first, second = run.scheduler.update(StepResult(rows))
    assert (first.token, first.finish, first.error) == (None, FinishReason.ERROR, "broken")
    assert (second.token, second.finish) == (2, None)


def test_a_row_that_verifies_goes_on_after_the_device_was_lost() -> None:
    run = Run(ROOMY_ROWS, LONG_BLOCKS, drafts=True)
    request = constrained("x")
    run.scheduler.add(request)
    while not run.device.accepted:
        run.step()
    while not (step := run.scheduler.schedule(run.now)).drafts:  # type: ignore[union-attr]
        run.note(run.scheduler.update(run.device.execute(step).result))  # type: ignore[arg-type]
    run.lose_everything()
    run.finish()
    check_answer(run, request)


def test_rows_wait_for_a_few_newcomers_at_a_time_only() -> None:
    """Prompts of one token cost no budget, but each joins the batch: rows stand still meanwhile."""
    run = Run(SchedulerLimits(max_batch_size=16, prefill_chunk_tokens=64, max_batched_tokens=64))
    for number in range(8):
        run.scheduler.add(make_request(f"alone{number}", 1, 90))
    run.step()
    assert len(run.chunk_log[-1]) == 8
    for number in range(8):
        run.scheduler.add(make_request(f"beside{number}", 1, 90))
    run.step()
    run.step()
    assert [len(chunks) for chunks in run.chunk_log[-2:]] == [4, 4]
