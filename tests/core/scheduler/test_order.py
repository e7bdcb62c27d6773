"""Whose turn it is: one criterion after the other, and whom the time of a step is put down to."""

import math
from dataclasses import replace
from typing import Any

import pytest

from omlx_server.core.request import Request, SamplingParams
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.order import PrefillOrder
from omlx_server.core.scheduler.sequence import PrefillState, Sequence
from omlx_server.core.step import Chunk, SequenceId
from tests.core.clocked import Clocked, Pace
from tests.core.scheduler.prompts import A, B, in_order, prefill, served
from tests.core.simulator import KV, make_request


def row(name: str, fed: int = 9, **changes: Any) -> Sequence:
    request = make_request(name, 9, 5, **changes)
    sequence = Sequence(SequenceId(request.id, 0), request)
    sequence.fed = fed
    return sequence


def pace_of(order: PrefillOrder, token: float) -> None:
    """So long a token of a prompt takes; enough were computed for waits to be told."""
    one = prefill("x", 5)
    chunk = Chunk(one.key, 0, (7,) * 10_000)
    order.begin_step(0)
    order.note_plan([], [one], [chunk])
    order.charge_chunks((chunk,), 10_000 * token)
    order.begin_step(0)


def test_a_class_comes_before_who_was_served_less() -> None:
    turns = PrefillOrder(SchedulerLimits())
    first = prefill("first", 900, owner=A)
    second = prefill("second", 3, owner=B, priority=1)
    in_order(turns, 0, second, first)
    served(turns, A, 100)
    assert in_order(turns, 0, second, first) == ["first", "second"]


def test_who_was_served_less_comes_before_less_work() -> None:
    turns = PrefillOrder(SchedulerLimits())
    short, long = prefill("a", 3, owner=A), prefill("b", 900, owner=B, arrived=50.0)
    in_order(turns, 0, short, long)
    served(turns, A, 1)
    assert in_order(turns, 60, short, long) == ["b", "a"]


def test_a_conversation_that_was_served_less_is_next_in_what_its_client_gets() -> None:
    turns = PrefillOrder(SchedulerLimits())
    prompts = [
        prefill("swarm", 3, owner=A, conversation=b"1"),
        prefill("chat", 900, owner=A, conversation=b"2"),
        prefill("other", 900, owner=B, conversation=b"1"),
    ]
    in_order(turns, 0, *prompts)
    turns.note_plan([], [prompts[0]])
    turns.charge_chunks((), 1)
    assert in_order(turns, 0, *prompts) == ["other", "chat", "swarm"]


def test_of_one_owner_the_least_work_comes_first() -> None:
    long, short = prefill("long", 300, 0), prefill("short", 9, 1)
    assert in_order(PrefillOrder(SchedulerLimits()), 9, long, short) == ["short", "long"]


def test_a_longer_prompt_is_passed_for_a_time_by_its_length_only() -> None:
    turns = PrefillOrder(SchedulerLimits())
    pace_of(turns, 0.001)
    long = prefill("long", 2001, 0)
    passed, now = 0, 0.0
    while True:
        short = prefill(f"s{passed}", 101, 1 + passed)
        for one in (long, short):
            one.promise_first_token(1e9)  # nobody is urgent
        if in_order(turns, now, long, short)[0] == "long":
            break
        turns.begin_step(now)
        turns.note_plan([], [short])
        turns.charge_chunks((), 0.1)
        passed, now = passed + 1, now + 0.1
    # The owner's time goes on by 0.1 s for each; their work differs by 8 times 1.9 s.
    assert 150 <= passed <= 156


def test_what_is_done_or_expected_from_the_cache_is_no_work() -> None:
    begun, warm, cold = prefill("begun", 100, 0), prefill("warm", 100, 1), prefill("cold", 40, 2)
    assert in_order(PrefillOrder(SchedulerLimits()), 0, cold, begun, warm) == [
        "cold",
        "begun",
        "warm",
    ]
    begun.computed = begun.restored = warm.expected = 91
    assert in_order(PrefillOrder(SchedulerLimits()), 0, cold, begun, warm) == [
        "begun",
        "warm",
        "cold",
    ]


# -- what is told ------------------------------------------------------------------------


def test_the_wait_that_is_told_follows_from_the_pace_and_what_is_before() -> None:
    turns = PrefillOrder(SchedulerLimits())
    newcomer = make_request("new", 9, 1, owner=A)
    before = [prefill("x", 9, owner=A), prefill("z", 41, owner=B)]
    assert turns.longest_wait(newcomer, before) == 0, "nothing is known"
    pace_of(turns, 0.1)
    work = turns.backlog(newcomer, before)
    assert work == pytest.approx(4.8, abs=0.5)
    assert turns.longest_wait(newcomer, []) == 5
    assert turns.longest_wait(newcomer, before) == pytest.approx(3 * work + 5)
    worse = [prefill("w", 900, owner=B, priority=1)]
    assert turns.longest_wait(newcomer, worse) == 5
    turns.set_part(0.25)
    assert turns.longest_wait(newcomer, before) == pytest.approx(3 * 4 * work + 5)


def test_rows_are_not_charged_for_the_time_of_other_models() -> None:
    turns = PrefillOrder(SchedulerLimits())
    in_order(turns, 0, prefill("a", 5, owner=A), prefill("b", 5, owner=B))
    turns.begin_step(0)
    turns.note_plan([row("a", owner=A)], [])
    turns.set_part(0.5, away=3.0)
    turns.begin_step(4.0)
    assert lead(turns, A, B) == pytest.approx(4.0 - 3.0)


def two_owners(first: str, second: str) -> tuple[PrefillOrder, PrefillState, PrefillState]:
    """Prompts of two owners, of which that of the `first` is ahead."""
    turns = PrefillOrder(SchedulerLimits())
    pace_of(turns, 0.1)
    ahead, behind = prefill(first, 101, 0, owner=A), prefill(second, 101, 1, owner=B)
    in_order(turns, 0, ahead, behind)
    served(turns, A, 1)
    return turns, ahead, behind


def test_who_would_miss_its_told_time_goes_first() -> None:
    turns, patient, other = two_owners("patient", "other")
    assert patient.promised_by is not None
    assert in_order(turns, 0, patient, other) == ["other", "patient"]
    assert in_order(turns, patient.promised_by - 12, patient, other) == ["patient", "other"]
    assert in_order(turns, patient.promised_by - 99, patient, other) == ["patient", "other"], (
        "it stays so"
    )


def test_where_all_are_urgent_the_earliest_told_comes_first() -> None:
    turns, early, late = two_owners("early", "late")
    assert turns.urgent_from > 0
    early.promise_first_token(12.0)
    late.promise_first_token(13.0)
    assert in_order(turns, 9.0, early, late) == ["early", "late"]
    assert turns.urgent_from <= 9.0


def test_nothing_is_urgent_once_all_prompts_are_rows() -> None:
    run = Clocked(SchedulerLimits(max_batch_size=1), Pace(0.01, 0.01), KV)
    run.tell_pace(2400)
    run.send(make_request("a", 9, 30))
    run.turn()
    while run.scheduler.queues.waiting or run.scheduler.queues.active:
        run.scheduler.prefill_order.urgent_from = 0.0
        run.turn()
    run.turn()
    assert run.scheduler.prefill_order.urgent_from == math.inf


def test_what_was_told_stays() -> None:
    turns = PrefillOrder(SchedulerLimits())
    pace_of(turns, 0.1)
    first = prefill("first", 101, 0, owner=A)
    in_order(turns, 0, first)
    told = first.promised_by
    in_order(turns, 7, first, prefill("more", 901, 1, owner=B))
    assert first.promised_by == told


# -- to whom the time goes ---------------------------------------------------------------


def lead(turns: PrefillOrder, one: bytes, other: bytes) -> float:
    return turns.lead_seconds(
        make_request("l", 3, 1, owner=one), make_request("m", 3, 1, owner=other)
    )


def test_the_time_of_a_step_goes_to_its_prompts_and_what_is_left_to_its_rows() -> None:
    turns = PrefillOrder(SchedulerLimits())
    in_order(turns, 0, prefill("a", 5, owner=A), prefill("b", 5, owner=B))
    turns.begin_step(10)
    turns.note_plan([row("x", owner=A), row("y", owner=A)], [prefill("z", 5, owner=B)])
    turns.charge_chunks((), 0.75)
    turns.begin_step(11)
    assert lead(turns, B, A) == pytest.approx(0.75 - 0.25)


def test_the_time_of_one_step_is_not_counted_with_the_next() -> None:
    turns = PrefillOrder(SchedulerLimits())
    in_order(turns, 0, prefill("a", 5, owner=A), prefill("b", 5, owner=B))
    turns.begin_step(10)
    turns.note_plan([row("x", owner=A)], [prefill("z", 5, owner=B)])
    turns.charge_chunks((), 0.5)
    turns.begin_step(11)
    turns.note_plan([], [])
    turns.begin_step(20)
    turns.note_plan([row("y", owner=B)], [])
    turns.begin_step(20.25)
    assert lead(turns, B, A) == pytest.approx(0.25)


def test_rows_pay_half_by_the_tokens_that_they_keep() -> None:
    turns = PrefillOrder(SchedulerLimits())
    in_order(turns, 0, prefill("a", 5, owner=A), prefill("b", 5, owner=B))
    turns.begin_step(0)
    turns.note_plan([row("x", 300, owner=A), row("y", 100, owner=B)], [])
    turns.begin_step(8)
    assert lead(turns, A, B) == pytest.approx((2 + 3) - (2 + 1))


def test_rows_are_owed_nothing_for_prompts_that_were_read_without_them() -> None:
    turns = PrefillOrder(SchedulerLimits(decode_share=0.5))
    turns.begin_step(0)
    turns.note_plan([], [prefill("x", 5, owner=A)])
    turns.charge_chunks((), 5)
    assert not turns.rows_come_first


def test_rows_go_first_until_they_have_had_their_share() -> None:
    turns = PrefillOrder(SchedulerLimits(decode_share=0.5))
    turns.begin_step(0)
    turns.note_plan([row("r", owner=A)], [prefill("x", 5, owner=B)])
    turns.charge_chunks((), 2)
    first = [turns.rows_come_first]
    for now in (3, 3.9, 4):  # two seconds went to the prompt
        turns.begin_step(now)
        turns.note_plan([row("r", owner=A)], [])
        first.append(turns.rows_come_first)
    assert first == [True, True, True, False]


def test_what_rows_were_owed_is_forgotten_when_they_are_gone() -> None:
    turns = PrefillOrder(SchedulerLimits(decode_share=0.5))
    turns.begin_step(0)
    turns.note_plan([row("r", owner=A)], [prefill("x", 5, owner=B)])
    turns.charge_chunks((), 9)
    turns.begin_step(9)
    turns.note_plan([], [prefill("x", 5, owner=B)])
    assert not turns.rows_come_first


# -- what the scheduler makes of it ------------------------------------------------------

LIMITS = SchedulerLimits(max_batch_size=6, prefill_chunk_tokens=8, max_batched_tokens=8)


def test_a_lower_class_waits_while_the_higher_has_work_and_then_goes_on() -> None:
    run = Clocked(LIMITS, Pace(token=0.001, decode=0.001))
    run.send(make_request("low", 33, 3, priority=1))
    run.turn()
    for number in range(6):
        run.send(endless(f"high{number}", 9, 2, arrived=run.now))
    run.finish_turns()
    assert run.chunks["low", 0][0] > max(run.chunks[f"high{n}", 0][0] for n in range(6))


def endless(name: str, length: int, max_tokens: int, **changes: Any) -> Request:
    """A request that no stop token ends."""
    request = make_request(name, length, max_tokens, **changes)
    return replace(request, sampling=SamplingParams(max_tokens=max_tokens))


def test_a_long_prompt_is_read_in_a_flood_of_short_ones() -> None:
    """A prompt of ten chunks, and a short one that comes with each turn: it is passed for about
    eight times its own work."""
    run = Clocked(SchedulerLimits(8, 200, 8, 8), Pace(token=0.01, decode=0.001))
    run.send(make_request("long", 81, 1))
    for number in range(120):
        run.send(make_request(f"s{number}", 9, 1, arrived=run.now))
        run.turn()
    assert 60 <= run.chunks["long", 0][0] <= 100


def longest_wait(run: Clocked, until: str, **changes: Any) -> int:
    """How many chunks are run before the first token of newcomers that come now and then."""
    came: dict[str, int] = {}
    begun = run.now
    while (until, 0) not in run.outputs:
        if run.now - begun > 1.5 * len(came):
            name = f"new{len(came)}"
            came[name] = run.chunks_run
            run.send(endless(name, 21, 2, arrived=run.now, salt=b"new", **changes))
        run.turn()
    run.finish_turns()
    return max(run.chunks[name, 0][0] - before for name, before in came.items())


@pytest.mark.parametrize("token", [0.0001, 0.005, 0.05])
def test_newcomers_wait_for_a_chunk_or_two_of_a_long_prompt_at_any_speed(token: float) -> None:
    run = Clocked(SchedulerLimits(8, 50, 64, 64), Pace(token=token, decode=0.01))
    run.send(endless("long", 6401, 1))
    assert longest_wait(run, "long") <= 5


def test_so_they_do_when_it_had_to_wait_for_another_one_before() -> None:
    """Two want the same document read, the second has more after it."""
    run = Clocked(SchedulerLimits(8, 50, 64, 64), Pace(token=0.005, decode=0.01), KV)
    run.send(endless("long", 6401, 1))
    run.send(endless("2long", 3201, 1))
    while ("2long", 0) not in run.outputs:
        run.turn()
    assert ("long", 0) not in run.outputs
    assert longest_wait(run, "long") <= 5


def test_so_they_do_when_it_takes_longer_than_was_told() -> None:
    """Of short prompts only little is learnt about a deep one."""
    run = Clocked(SchedulerLimits(8, 50, 64, 64), Pace(token=0.001, decode=0.001, depth=0.0001))
    for number in range(50):
        run.send(endless(f"first{number}", 61, 1))
        run.finish_turns()
    long = endless("long", 6401, 1, arrived=run.now)
    run.send(long)
    told = run.now + run.scheduler.promise_first_token(long, run.now)
    assert longest_wait(run, "long") <= 5
    assert run.times["long", 0][0] > told


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_rows_keep_their_share_of_the_time_while_a_prompt_is_read(share: float) -> None:
    """A chunk takes ten times as long as a decode; without a share they alternate."""
    limits = SchedulerLimits(8, 20, 8, 8, decode_share=share)
    run = Clocked(limits, Pace(token=0.0125, decode=0.01))
    for name in "abcd":
        run.send(endless(name, 2, 4000))
    while len(run.device.rows) < 4:
        run.turn()
    run.send(make_request("long", 1000, 1, arrived=run.now))
    decoding, reading = run.decoding, run.reading
    while ("long", 0) not in run.outputs:
        run.turn()
    decoding, reading = run.decoding - decoding, run.reading - reading
    wanted = max(share, 1 / 11)
    assert wanted <= decoding / (decoding + reading) <= wanted + 0.04
