"""Whose turn it is: one criterion after the other, and whom the time of a step is put down to."""

from dataclasses import replace
from typing import Any

import pytest

from omlx_server.core.layout import CacheLayout, Kind
from omlx_server.core.limits import Limits
from omlx_server.core.prefix_cache import PrefixCache
from omlx_server.core.request import Request, SamplingParams
from omlx_server.core.sequence import Prefill, Sequence
from omlx_server.core.step import SequenceId
from omlx_server.core.turns import Turns
from tests.core.clocked import Clocked, Pace
from tests.core.simulator import KV, ROOMY, make_request

A, B = b"a", b"b"
CACHE = PrefixCache(CacheLayout(frozenset({Kind.DELTA}), block_size=4), "model", ROOMY)


def prefill(name: str, length: int, order: int = 0, **changes: Any) -> Prefill:
    request = make_request(name, length, 5, **changes)
    sequence = Sequence(SequenceId(request.id, 0), request)
    return Prefill([sequence], order, CACHE.enter(request.tokens[:-1], b"", ()))


def in_order(turns: Turns, now: float, *prefills: Prefill) -> list[str]:
    return [p.request.id for p in turns.in_order(prefills, now)]


def served(turns: Turns, owner: bytes, seconds: float) -> None:
    turns.begin(0)
    turns.planned([], [prefill("x", 5, owner=owner)])
    turns.read(seconds)
    turns.begin(0)


def test_a_class_comes_before_who_was_served_less() -> None:
    turns = Turns(Limits())
    served(turns, A, 100)
    first = prefill("first", 900, owner=A)
    second = prefill("second", 3, owner=B, priority=1)
    assert in_order(turns, 0, second, first) == ["first", "second"]


def test_who_was_served_less_comes_before_less_work_and_longer_waiting() -> None:
    turns = Turns(Limits())
    served(turns, A, 1)
    short, long = prefill("a", 3, owner=A), prefill("b", 900, owner=B, arrived=50.0)
    assert in_order(turns, 60, short, long) == ["b", "a"]


def test_of_one_owner_less_work_comes_first_and_then_who_came_first() -> None:
    turns = Turns(Limits())
    late, early = prefill("late", 9, order=2), prefill("early", 9, order=1)
    assert in_order(turns, 0, late, early, prefill("short", 8, order=3)) == [
        "short",
        "early",
        "late",
    ]


def test_what_is_done_or_expected_from_the_cache_is_no_work() -> None:
    turns = Turns(Limits())
    begun, warm, cold = prefill("begun", 100), prefill("warm", 100), prefill("cold", 40)
    begun.computed, warm.expected = 70, 80
    assert in_order(turns, 0, cold, begun, warm) == ["warm", "begun", "cold"]


def step(turns: Turns, read: Prefill, seconds: float, *prefills: Prefill) -> list[str]:
    """One of some prompts is read for so long. In which order they are then."""
    turns.begin(0)
    turns.in_order(prefills, 0)
    turns.planned([], [read])
    turns.read(seconds)
    return in_order(turns, 0, *prefills)


def test_of_those_who_are_next_the_first_that_came_keeps_its_share() -> None:
    turns = Turns(Limits(eldest_share=0.25))
    long = prefill("long", 90, 1)
    short, other = prefill("short", 9, 2, arrived=1.0), prefill("other", 7, 3, arrived=2.0)
    prefills = (short, long, other)
    assert in_order(turns, 0, *prefills) == ["other", "short", "long"]
    turns = Turns(Limits(eldest_share=0.25))
    assert [step(turns, short, 3, *prefills)[0] for _ in range(3)] == ["other", "other", "long"]
    assert step(turns, long, 3, *prefills)[0] == "other"


def test_without_a_share_the_shortest_always_goes_first() -> None:
    turns = Turns(Limits(eldest_share=0))
    long, short = prefill("long", 90), prefill("short", 9, 1, arrived=1.0)
    assert step(turns, short, 1000, long, short) == ["short", "long"]


def test_who_is_owed_nothing_any_more_waits_for_shorter_ones_again() -> None:
    turns = Turns(Limits(eldest_share=0.25))
    long, short = prefill("long", 90), prefill("short", 9, 1, arrived=1.0)
    for _ in range(9):
        ordered = step(turns, short, 3, long, short)
    assert ordered == ["long", "short"]
    step(turns, long, 3, long, short)
    assert in_order(turns, 0, long, short) == ["short", "long"]


def test_who_came_first_is_so_among_its_own_class_and_key_only() -> None:
    turns = Turns(Limits(eldest_share=0.25))
    served(turns, B, 100)
    short = prefill("short", 9, 3, owner=A, arrived=2.0)
    prefills = [
        prefill("low", 90, 0, owner=A, priority=1),
        prefill("busy", 90, 1, owner=B),
        prefill("long", 90, 2, owner=A, arrived=1.0),
        short,
    ]
    step(turns, short, 3, *prefills)
    step(turns, short, 3, *prefills)
    assert step(turns, short, 3, *prefills) == ["long", "short", "busy", "low"]


def test_what_it_is_owed_is_forgotten_when_nobody_is_left() -> None:
    turns = Turns(Limits(eldest_share=0.25))
    long, short = prefill("long", 90), prefill("short", 9, 1, arrived=1.0)
    for _ in range(3):
        ordered = step(turns, short, 3, long, short)
    assert ordered == ["long", "short"]
    turns.in_order([], 0)
    assert in_order(turns, 0, long, short) == ["short", "long"]


def used(turns: Turns, owner: bytes, now: float) -> float:
    return turns._fairness.used(owner, now)


def test_the_time_of_a_step_goes_to_its_prompts_and_what_is_left_to_its_rows() -> None:
    turns = Turns(Limits())
    turns.begin(10)
    turns.planned([A, A], [prefill("x", 5, owner=B)])
    turns.read(0.75)
    turns.begin(11)
    assert used(turns, A, 11) == 0.25
    assert used(turns, B, 10) == 0.75


def test_the_time_of_one_step_is_not_counted_with_the_next() -> None:
    turns = Turns(Limits())
    turns.begin(10)
    turns.planned([A], [prefill("x", 5, owner=B)])
    turns.read(0.5)
    turns.begin(11)
    turns.planned([], [])
    turns.begin(20)
    turns.planned([B], [])
    turns.begin(20.25)
    assert used(turns, A, 11) == 0.5
    assert used(turns, B, 20.25) == pytest.approx(0.25 + 0.5 * 2 ** (-10.25 / 30))


def test_rows_are_owed_nothing_for_prompts_that_were_read_without_them() -> None:
    turns = Turns(Limits(decode_share=0.5))
    turns.begin(0)
    turns.planned([], [prefill("x", 5, owner=A)])
    turns.read(5)
    assert not turns.rows_first


def test_rows_go_first_until_they_have_had_their_share() -> None:
    turns = Turns(Limits(decode_share=0.5))
    turns.begin(0)
    turns.planned([A], [prefill("x", 5, owner=B)])
    turns.read(2)
    first = [turns.rows_first]
    for now in (3, 3.9, 4):  # two seconds went to the prompt
        turns.begin(now)
        turns.planned([A], [])
        first.append(turns.rows_first)
    assert first == [True, True, True, False]


def test_what_rows_were_owed_is_forgotten_when_they_are_gone() -> None:
    turns = Turns(Limits(decode_share=0.5))
    turns.begin(0)
    turns.planned([A], [prefill("x", 5, owner=B)])
    turns.read(9)
    turns.begin(9)
    turns.planned([], [prefill("x", 5, owner=B)])
    assert not turns.rows_first


# -- what the scheduler makes of it ------------------------------------------------------

LIMITS = Limits(max_batch_size=6, prefill_chunk_tokens=8, max_batched_tokens=8)


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


def beside_a_flood(share: float) -> Clocked:
    """A prompt of ten chunks, and a short one that comes with each turn."""
    run = Clocked(Limits(8, 200, 8, 8, eldest_share=share), Pace(token=0.01, decode=0.001))
    run.send(make_request("long", 81, 1))
    for number in range(80):
        run.send(make_request(f"s{number}", 9, 1, arrived=run.now))
        run.turn()
    return run


def test_a_long_prompt_is_read_in_a_flood_of_short_ones() -> None:
    """Of four chunks one is its own."""
    assert 36 <= beside_a_flood(0.25).chunks["long", 0][0] <= 44
    assert ("long", 0) not in beside_a_flood(0).outputs


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
    run = Clocked(Limits(8, 50, 64, 64), Pace(token=token, decode=0.01))
    run.send(endless("long", 6401, 1))
    assert longest_wait(run, "long") <= 5


def test_so_they_do_when_it_had_to_wait_for_another_one_before() -> None:
    """Two want the same document read, the second has more after it."""
    run = Clocked(Limits(8, 50, 64, 64), Pace(token=0.005, decode=0.01), KV)
    run.send(endless("long", 6401, 1))
    run.send(endless("2long", 3201, 1))
    while ("2long", 0) not in run.outputs:
        run.turn()
    assert ("long", 0) not in run.outputs
    assert longest_wait(run, "long") <= 5


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_rows_keep_their_share_of_the_time_while_a_prompt_is_read(share: float) -> None:
    """A chunk takes ten times as long as a decode; without a share they alternate."""
    limits = Limits(8, 20, 8, 8, decode_share=share)
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
