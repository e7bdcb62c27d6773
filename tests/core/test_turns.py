"""Whose turn it is: one criterion after the other, and whom the time of a step is put down to."""

from dataclasses import replace

import pytest

from omlx_server.core.layout import CacheLayout, Kind
from omlx_server.core.limits import Limits
from omlx_server.core.prefix_cache import PrefixCache
from omlx_server.core.request import Request, SamplingParams
from omlx_server.core.sequence import Prefill, Sequence
from omlx_server.core.step import SequenceId
from omlx_server.core.turns import Turns
from tests.core.clocked import Clocked, Pace
from tests.core.simulator import ROOMY, make_request

A, B = b"a", b"b"
CACHE = PrefixCache(CacheLayout(frozenset({Kind.DELTA}), block_size=4), "model", ROOMY)


def prefill(name: str, length: int, order: int = 0, **changes: object) -> Prefill:
    request = make_request(name, length, 5, **changes)
    sequence = Sequence(SequenceId(request.id, 0), request)
    return Prefill([sequence], order, CACHE.enter(request.tokens[:-1], b"", ()))


def in_order(turns: Turns, now: float, *prefills: Prefill) -> list[str]:
    ordered = sorted(prefills, key=lambda p: turns.order(p, now))
    return [p.request.id for p in ordered]


def served(turns: Turns, owner: bytes, seconds: float) -> None:
    turns.begin(0)
    turns.planned([], [owner])
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


@pytest.mark.parametrize(("seconds", "first"), [(1.0, "short"), (3.0, "long")])
def test_a_second_of_waiting_counts_for_so_many_tokens(seconds: float, first: str) -> None:
    turns = Turns(Limits(ageing_tokens_per_second=10))
    long, short = prefill("long", 30), prefill("short", 9, arrived=seconds)
    assert in_order(turns, seconds, short, long)[0] == first


def test_who_comes_from_the_future_gains_nothing_by_it() -> None:
    turns = Turns(Limits(ageing_tokens_per_second=10))
    assert in_order(turns, 0, prefill("x", 9, arrived=50.0), prefill("y", 10)) == ["x", "y"]


def used(turns: Turns, owner: bytes, now: float) -> float:
    return turns.order(prefill("x", 3, owner=owner), now)[1]


def test_the_time_of_a_step_goes_to_its_prompts_and_what_is_left_to_its_rows() -> None:
    turns = Turns(Limits())
    turns.begin(10)
    turns.planned([A, A], [B])
    turns.read(0.75)
    turns.begin(11)
    assert used(turns, A, 11) == 0.25
    assert used(turns, B, 10) == 0.75


def test_the_time_of_one_step_is_not_counted_with_the_next() -> None:
    turns = Turns(Limits())
    turns.begin(10)
    turns.planned([A], [B])
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
    turns.planned([], [A])
    turns.read(5)
    assert not turns.rows_first


def test_rows_go_first_until_they_have_had_their_share_or_are_gone() -> None:
    turns = Turns(Limits(decode_share=0.5))
    turns.begin(0)
    turns.planned([A], [B])
    turns.read(2)
    assert turns.rows_first
    turns.begin(3)  # one second of it was theirs
    assert turns.rows_first
    turns.planned([A], [])
    turns.begin(4)
    assert not turns.rows_first
    turns.planned([A], [B])
    turns.read(9)
    turns.begin(14)
    turns.planned([], [B])
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


def endless(name: str, length: int, max_tokens: int, **changes: object) -> Request:
    """A request that no stop token ends."""
    request = make_request(name, length, max_tokens, **changes)
    return replace(request, sampling=SamplingParams(max_tokens=max_tokens))


def long_one(ageing: float, *, flood: int) -> Clocked:
    """A prompt of ten chunks, and a short one that comes with each turn."""
    limits = Limits(8, 200, 8, 8, ageing_tokens_per_second=ageing)
    run = Clocked(limits, Pace(token=0.01, decode=0.001))
    run.send(make_request("long", 81, 1))
    for number in range(flood):
        run.send(make_request(f"s{number}", 9, 1, arrived=run.now))
        run.turn()
    return run


def test_a_long_prompt_grows_older_than_a_flood_of_short_ones() -> None:
    """At 20 tokens a second its 80 tokens are worth four seconds: fifty chunks."""
    assert ("long", 0) in long_one(20, flood=65).outputs
    assert ("long", 0) not in long_one(20, flood=40).outputs
    assert ("long", 0) not in long_one(0, flood=130).outputs


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
