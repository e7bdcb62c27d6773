"""First come, first served: what fair turns do otherwise is in test_order.py and
test_row_fairness.py."""

from dataclasses import replace

import pytest

from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.order import PrefillOrder
from tests.core.rows import LIMITS, busy, owners, settle
from tests.core.scheduler.prompts import A, B, in_order, prefill, served
from tests.core.simulator import KV, Run, make_request, right_answer

FCFS = SchedulerLimits(fair=False)
ROWS = replace(LIMITS, fair=False)


def test_who_came_first_is_read_first_however_long_and_whoever_it_is() -> None:
    turns = PrefillOrder(FCFS)
    served(turns, A, 100)
    long = prefill("long", 900, 1, owner=A, arrived=1.0)
    short = prefill("short", 3, 2, owner=A, arrived=2.0)
    other = prefill("other", 3, 3, owner=B, arrived=3.0)
    assert in_order(turns, 9, other, short, long) == ["long", "short", "other"]
    assert in_order(PrefillOrder(SchedulerLimits()), 9, other, short, long) == [
        "short",
        "other",
        "long",
    ]


def test_a_class_still_comes_before_that() -> None:
    first = prefill("first", 9, 1, priority=1)
    urgent = prefill("urgent", 9, 2, arrived=5.0)
    assert in_order(PrefillOrder(FCFS), 9, first, urgent) == ["urgent", "first"]


def test_of_one_moment_who_was_queued_first() -> None:
    assert in_order(PrefillOrder(FCFS), 9, prefill("b", 3, 2), prefill("a", 9, 1)) == ["a", "b"]


def test_who_had_to_go_back_has_its_old_place() -> None:
    back = prefill("back", 9, 7, arrived=1.0)
    assert in_order(PrefillOrder(FCFS), 9, prefill("later", 3, 2, arrived=2.0), back) == [
        "back",
        "later",
    ]


def test_the_policy_can_change_while_prompts_wait() -> None:
    turns = PrefillOrder(SchedulerLimits(prefill_chunk_tokens=8))
    long, short = prefill("long", 90, 1), prefill("short", 3, 2, arrived=1.0)
    assert in_order(turns, 9, long, short) == ["short", "long"]
    turns.change(FCFS)
    assert in_order(turns, 9, long, short) == ["long", "short"]


def test_keys_do_not_share_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.core.simulator.STOP", -1)
    run = Run(ROWS, KV)
    busy(run, 6, b"a")
    settle(run)
    busy(run, 6, b"b")
    settle(run, 16)
    assert owners(run) == ["a"] * 4
    assert run.chunk_log[-16:] == [()] * 16, "nobody went back and is read again"


@pytest.mark.parametrize("limits", [ROWS, LIMITS])
def test_answers_are_the_same_and_begin_in_order_of_arrival(limits: SchedulerLimits) -> None:
    run = Run(limits, KV)
    requests = [
        make_request(f"r{i}", 40 - 3 * i, 6, owner=(A, B)[i % 2], arrived=i / 10) for i in range(10)
    ]
    for request in requests:
        assert run.scheduler.add(request) is None
    run.finish()
    in_turn = list(run.admitted) == [request.id for request in requests]
    assert in_turn == (limits is ROWS)
    for request in requests:
        output, finish = right_answer(request, 0)
        assert run.outputs.get((request.id, 0), []) == output
        assert run.finishes[request.id, 0] is finish
