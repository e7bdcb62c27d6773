"""Rows are shared between keys: who holds them all makes way for who waits."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import FinishReason
from omlx_server.core.scheduler.memory_admission import Admission
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.core.scheduler.sequence import Sequence
from omlx_server.core.step import SequenceId
from tests.core.rows import LIMITS, LONG, busy, owners, settle
from tests.core.simulator import KV, Run, make_request, right_answer


def test_a_key_that_waits_gets_its_half_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.core.simulator.STOP", -1)
    run = Run(LIMITS, KV)
    busy(run, 6, b"a")
    settle(run)
    assert owners(run) == ["a"] * 4
    busy(run, 6, b"b")
    run.step(0.1)
    assert owners(run) == ["a"] * 4 + ["b"], "one row more, and nobody makes way at once"
    while owners(run).count("b") < 2:
        run.step(0.5)
        assert run.now < 20
    rows = Counter[str]()
    back = rows_sent_back(run, monkeypatch)
    for _ in range(100):
        run.step(0.5)
        rows.update(owners(run))
    assert 0.75 < rows["a"] / rows["b"] < 1.25
    assert len(back) <= 12, "not for nothing"


def test_who_made_way_ends_with_the_right_answer() -> None:
    run = Run(LIMITS, KV)
    requests = [
        make_request(f"{owner}{i}", 5 + i, LONG, owner=owner.encode(), arrived=i / 10)
        for owner in "ab"
        for i in range(8)
    ]
    for request in requests:
        assert run.scheduler.add(request) is None
        run.step(0.4)
    run.finish(9999)
    for request in requests:
        output, finish = right_answer(request, 0)
        assert run.outputs.get((request.id, 0), []) == output
        assert run.finishes[request.id, 0] is finish


def test_a_row_that_loses_a_token_when_it_makes_way_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requeue = SequenceQueues.requeue_when_read

    def losing(queues: SequenceQueues, sequence: Sequence) -> None:
        if not sequence.in_flight and sequence.id in queues.preempted and sequence.output:
            sequence.output.pop()
        requeue(queues, sequence)

    monkeypatch.setattr(SequenceQueues, "requeue_when_read", losing)
    with pytest.raises(AssertionError):
        test_who_made_way_ends_with_the_right_answer()


def test_a_chat_does_not_wait_for_the_other_conversations_of_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited until each of thirty others had had a row."""
    monkeypatch.setattr("tests.core.simulator.STOP", -1)
    run = Run(LIMITS, KV)
    for number in range(30):
        name, own = f"stream{number}", b"%d" % number
        run.scheduler.add(make_request(name, 5 + number, LONG, owner=b"a", conversation=own))
    settle(run)
    chat = make_request("chat", 5, 1, owner=b"a", conversation=b"chat", arrived=run.now)
    run.scheduler.add(chat)
    settle(run, 6)
    assert run.finishes == {("chat", 0): FinishReason.LENGTH}


def test_one_key_alone_keeps_all_rows() -> None:
    run = Run(LIMITS, KV)
    busy(run, 8, b"a")
    settle(run)
    before = owners(run)
    assert len(before) == 4


def two_of_a_and_two_of_b(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Run:
    """Both rows are those of a; b waits for the one beyond them, and for another one."""
    monkeypatch.setattr("tests.core.simulator.STOP", -1)
    run = Run(replace(LIMITS, max_batch_size=2), KV)
    busy(run, 2, b"a")
    run.step(2)
    for name in ("b0", "b1"):
        request = make_request(name, 5, LONG, owner=b"b", **changes)
        assert run.scheduler.add(request) is None
    return run


def test_who_has_not_decoded_yet_does_not_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    run = two_of_a_and_two_of_b(monkeypatch)
    run.step(2)
    assert owners(run) == ["a", "a", "b"]
    settle(run, 20)
    assert owners(run) == ["a", "b", "b"]
    assert run.outputs["a0", 0] and run.outputs["a1", 0]


def test_a_better_class_does_not_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would come back before whom it made way for, again and again."""
    run = two_of_a_and_two_of_b(monkeypatch, priority=1)
    computed = run.computed
    settle(run, 20)
    assert owners(run) == ["a", "a"] and run.computed == computed


def test_nobody_makes_way_for_who_waits_for_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    run = two_of_a_and_two_of_b(monkeypatch)
    monkeypatch.setattr(run.cache, "must_wait", lambda handle: True)
    computed = run.computed
    settle(run, 20)
    assert owners(run) == ["a", "a"] and run.computed == computed


def rows_sent_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[SequenceId]:
    """Filled from now on."""
    found: list[SequenceId] = []
    preempt = SequenceQueues.preempt

    def noted(queues: SequenceQueues, id: SequenceId) -> None:
        found.append(id)
        preempt(queues, id)

    monkeypatch.setattr(SequenceQueues, "preempt", noted)
    return found


def four_of_a_and_a_pair_of_b(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("tests.core.simulator.STOP", -1)
    run = Run(LIMITS, KV)
    busy(run, 6, b"a")
    busy(run, 1, b"b")  # it has the one row beyond those for all
    settle(run)
    pair = make_request("b9", 5, LONG, owner=b"b", arrived=run.now, n=2)
    assert run.scheduler.add(pair) is None
    return run


def test_as_many_rows_make_way_as_a_prompt_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time went to the queue, and the next of its own key took the row."""
    run = four_of_a_and_a_pair_of_b(monkeypatch)
    back = rows_sent_back(run, monkeypatch)
    while owners(run).count("b") < 3:
        run.step(0.5)
    assert owners(run) == ["a", "a", "b", "b", "b"] and len(back) == 2


def test_nobody_makes_way_where_memory_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    run = four_of_a_and_a_pair_of_b(monkeypatch)
    back = rows_sent_back(run, monkeypatch)
    monkeypatch.setattr(Admission, "may_admit", lambda *given: False)
    settle(run, 20)
    assert owners(run) == ["a"] * 4 + ["b"] and not back


def test_prompts_of_one_key_are_not_read_in_vain_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody was ever answered: of two prompts that are read, the one that became a row was sent
    back for b before it had decoded, came back first, and was read beside the other one."""
    monkeypatch.setattr("tests.core.simulator.STOP", -1)
    limits = replace(LIMITS, max_batch_size=2)
    run = Run(limits, KV, HotBudget(0, 0))
    for name, length in (("a0", 90), ("a1", 60)):
        run.scheduler.add(make_request(name, length, 4, owner=b"a", arrived=run.now))
    for name in ("b0", "b1"):
        request = make_request(name, 90, 4, owner=b"b", priority=1, arrived=run.now)
        run.scheduler.add(request)
    run.finish(200)
    assert set(run.finishes.values()) == {FinishReason.LENGTH}
