"""Whose turn it is: one criterion after the other, and whom the time of a step is put down to."""

from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

import pytest

from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.scheduler.order import PrefillOrder
from omlx_server.core.scheduler.sequence import Prefill
from omlx_server.core.step import Chunk
from tests.core.clocked import Clocked, Pace
from tests.core.scheduler.prompts import A, B, in_order, prefill, served
from tests.core.simulator import KV, make_request


def test_a_class_comes_before_who_was_served_less() -> None:
    turns = PrefillOrder(Limits())
    served(turns, A, 100)
    first = prefill("first", 900, owner=A)
    second = prefill("second", 3, owner=B, priority=1)
    assert in_order(turns, 0, second, first) == ["first", "second"]


def test_who_was_served_less_comes_before_less_work_and_longer_waiting() -> None:
    turns = PrefillOrder(Limits())
    served(turns, A, 1)
    short, long = prefill("a", 3, owner=A), prefill("b", 900, owner=B, arrived=50.0)
    assert in_order(turns, 60, short, long) == ["b", "a"]


SMALL = Limits(prefill_chunk_tokens=8)
"""Short prompts have up to 8 tokens to read, medium ones up to 64."""


def test_of_one_owner_the_shorter_size_comes_first_and_within_it_who_came_first() -> None:
    long, medium = prefill("long", 66, order=0), prefill("medium", 65, order=1)
    late, early = prefill("late", 3, order=3, arrived=2.0), prefill("early", 9, order=2)
    again = prefill("again", 9, order=4, arrived=1.0)  # it had to go back to the queue
    order = in_order(PrefillOrder(SMALL), 9, long, late, again, medium, early)
    assert order == ["early", "again", "late", "medium", "long"]


def test_what_is_done_or_expected_from_the_cache_is_no_work() -> None:
    begun, warm, cold = prefill("begun", 100, 0), prefill("warm", 100, 1), prefill("cold", 40, 2)
    assert in_order(PrefillOrder(SMALL), 0, cold, begun, warm) == ["cold", "begun", "warm"]
    begun.computed, warm.expected = 91, 91
    assert in_order(PrefillOrder(SMALL), 0, cold, begun, warm) == ["begun", "warm", "cold"]


def step(turns: PrefillOrder, read: Prefill, seconds: float, *prefills: Prefill) -> list[str]:
    """One of some prompts is read for so long. In which order they are then."""
    turns.begin(0)
    turns.in_order(prefills, 0)
    turns.planned([], [read])
    turns.read((), seconds)
    return in_order(turns, 0, *prefills)


def first_of(turns: PrefillOrder, seconds: dict[str, float], *prefills: Prefill) -> list[str]:
    """Who is first in each of sixty steps, of so many seconds each by name."""
    named = {p.request.id: p for p in prefills}
    firsts = [in_order(turns, 0, *prefills)[0]]
    while len(firsts) < 60:
        name = firsts[-1]
        firsts.append(step(turns, named[RequestId(name)], seconds[name], *prefills)[0])
    return firsts


@pytest.mark.parametrize("long", [0.1, 1.0, 5.0])
def test_each_size_keeps_its_share_of_the_time_at_any_speed(long: float) -> None:
    prefills = prefill("long", 90, 0), prefill("medium", 20, 1), prefill("short", 5, 2)
    seconds = {"short": 0.2, "medium": 0.5, "long": long}
    firsts = Counter(first_of(PrefillOrder(SMALL), seconds, *prefills))
    had = {name: count * seconds[name] for name, count in firsts.items()}
    whole = sum(had.values())
    turn = max(seconds.values()) / whole
    for name, share in (("short", 0.5), ("medium", 0.25), ("long", 0.25)):
        assert share - turn <= had[name] / whole <= share + turn, had


def test_a_short_one_waits_for_one_chunk_of_each_other_size_at_most() -> None:
    prefills = prefill("long", 90, 0), prefill("medium", 20, 1), prefill("short", 5, 2)
    firsts = first_of(PrefillOrder(SMALL), {"short": 0.2, "medium": 1.0, "long": 2.0}, *prefills)
    runs = runs_without("s", firsts)
    assert runs and all(run in ("l", "m", "lm", "ml") for run in runs)


def runs_without(letter: str, names: Items[str]) -> list[str]:
    return "".join(name[0] for name in names).replace(letter, " ").split()


def test_time_that_a_size_had_while_others_could_not_be_read_counts_when_they_can() -> None:
    """A long prompt took the whole memory for a while. The next long one does not go first."""
    turns = PrefillOrder(SMALL)
    long, short = prefill("long", 90, 0), prefill("short", 5, 1)
    for _ in range(50):
        step(turns, long, 2.0, long, short)
    firsts = first_of(turns, {"short": 1.0, "next": 2.0}, prefill("next", 90, 2), short)
    assert 20 <= firsts.index("next") <= 40


def test_sizes_share_the_time_of_their_own_class_and_key_only() -> None:
    turns = PrefillOrder(SMALL)
    served(turns, B, 100)
    short = prefill("short", 9, 3, owner=A, arrived=2.0)
    prefills = [
        prefill("low", 90, 0, owner=A, priority=1),
        prefill("busy", 90, 1, owner=B),
        prefill("long", 90, 2, owner=A, arrived=1.0),
        short,
    ]
    assert step(turns, short, 3, *prefills) == ["long", "short", "busy", "low"]


def test_what_is_owed_is_forgotten_when_nobody_is_left() -> None:
    turns = PrefillOrder(SMALL)
    long, short = prefill("long", 90), prefill("short", 9, 1, arrived=1.0)
    assert step(turns, short, 3, long, short) == ["long", "short"]
    turns.in_order([], 0)
    assert in_order(turns, 0, long, short) == ["short", "long"]


def used(turns: PrefillOrder, owner: bytes, now: float) -> float:
    return turns._fairness.used(owner, now)


def test_the_time_of_a_step_goes_to_its_prompts_and_what_is_left_to_its_rows() -> None:
    turns = PrefillOrder(Limits())
    turns.begin(10)
    turns.planned([A, A], [prefill("x", 5, owner=B)])
    turns.read((), 0.75)
    turns.begin(11)
    assert used(turns, A, 11) == 0.25
    assert used(turns, B, 10) == 0.75


def test_the_time_of_one_step_is_not_counted_with_the_next() -> None:
    turns = PrefillOrder(Limits())
    turns.begin(10)
    turns.planned([A], [prefill("x", 5, owner=B)])
    turns.read((), 0.5)
    turns.begin(11)
    turns.planned([], [])
    turns.begin(20)
    turns.planned([B], [])
    turns.begin(20.25)
    assert used(turns, A, 11) == 0.5
    assert used(turns, B, 20.25) == pytest.approx(0.25 + 0.5 * 2 ** (-10.25 / 30))


def test_rows_are_owed_nothing_for_prompts_that_were_read_without_them() -> None:
    turns = PrefillOrder(Limits(decode_share=0.5))
    turns.begin(0)
    turns.planned([], [prefill("x", 5, owner=A)])
    turns.read((), 5)
    assert not turns.rows_first


def test_rows_go_first_until_they_have_had_their_share() -> None:
    turns = PrefillOrder(Limits(decode_share=0.5))
    turns.begin(0)
    turns.planned([A], [prefill("x", 5, owner=B)])
    turns.read((), 2)
    first = [turns.rows_first]
    for now in (3, 3.9, 4):  # two seconds went to the prompt
        turns.begin(now)
        turns.planned([A], [])
        first.append(turns.rows_first)
    assert first == [True, True, True, False]


def test_what_rows_were_owed_is_forgotten_when_they_are_gone() -> None:
    turns = PrefillOrder(Limits(decode_share=0.5))
    turns.begin(0)
    turns.planned([A], [prefill("x", 5, owner=B)])
    turns.read((), 9)
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


def test_a_long_prompt_is_read_in_a_flood_of_short_ones() -> None:
    """A prompt of ten chunks, and a short one that comes with each turn: of three chunks one is its
    own."""
    run = Clocked(Limits(8, 200, 8, 8), Pace(token=0.01, decode=0.001))
    run.send(make_request("long", 81, 1))
    for number in range(80):
        run.send(make_request(f"s{number}", 9, 1, arrived=run.now))
        run.turn()
    assert 25 <= run.chunks["long", 0][0] <= 34


def test_who_is_between_the_eldest_and_the_shortest_is_read_too() -> None:
    """Long prompts came before, and short ones keep coming: enough of either for all the time."""
    run = Clocked(Limits(8, 200, 8, 8), Pace(token=0.01, decode=0.001))
    for number in range(3):
        run.send(endless(f"long{number}", 401, 1))
    run.send(endless("medium", 33, 1))
    for number in range(30):
        run.send(make_request(f"s{number}", 9, 1, arrived=run.now))
        run.turn()
    assert run.chunks["medium", 0][0] <= 4 * 4 + 2


def test_the_wait_of_who_comes_now_is_told_from_the_pace_and_what_is_before() -> None:
    turns = PrefillOrder(SMALL)
    newcomer = make_request("new", 9, 1, owner=A)
    before = [prefill("x", 9, owner=A), prefill("y", 5, owner=A), prefill("z", 41, owner=A)]
    assert turns.wait(newcomer, before) == 0, "nothing is known"
    turns.begin(0)
    chunk = Chunk(before[0].key, 0, (7,) * 10)
    turns.planned([], [before[0]], [chunk])
    turns.read((chunk,), 1)
    turns.begin(1)
    assert turns.wait(newcomer, []) == 0
    # 8 + 4 tokens of its size, which has two thirds of the time beside a medium one.
    assert turns.wait(newcomer, before) == pytest.approx(12 / (2 / 3) * 0.1)
    other = [prefill("o", 900, owner=B)]
    assert turns.wait(newcomer, before + other) == pytest.approx(2 * 12 / (2 / 3) * 0.1)
    better = [prefill("b", 101, owner=B, priority=-1)]
    assert turns.wait(newcomer, better) == pytest.approx(100 * 0.1)


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
