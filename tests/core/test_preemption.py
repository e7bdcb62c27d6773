"""Memory that runs short, one situation at a time: who makes room, who waits, who ends."""

from dataclasses import replace

import pytest

from omlx_server.core.memory.guard import Relief
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.request import FinishReason, Rejected, RequestId
from omlx_server.core.scheduler.preemption import Preemption
from tests.core.short import (
    LIMITS,
    PLENTY,
    ROOM_FOR_ONE,
    ROOM_FOR_TWO,
    WIDE,
    Short,
    endless,
    id_of,
    three,
)
from tests.core.simulator import TOKEN_BYTES, right_answer

# -- who makes room ----------------------------------------------------------------------


def test_the_newest_goes_first_and_no_more_than_have_to() -> None:
    run = three()
    run.watch.limit = ROOM_FOR_TWO
    run.step()
    assert run.rows == {"a", "b"}
    run.watch.limit = ROOM_FOR_ONE
    run.step()
    assert run.rows == {"a"}
    assert run.used[Relief.PREEMPT] == 2 and not run.finishes
    run.watch.limit = PLENTY
    run.finish_right()


def test_the_last_class_goes_before_newer_ones_of_a_better() -> None:
    run = three(a=1, b=2)
    run.watch.limit = ROOM_FOR_TWO
    run.step()
    assert run.rows == {"a", "c"}
    run.watch.limit = ROOM_FOR_ONE
    run.step()
    assert run.rows == {"c"}
    run.watch.limit = PLENTY
    run.finish_right()


def test_of_one_request_the_last_choices_go_first_and_each_by_itself() -> None:
    run = Short()
    run.send("a", n=3)
    run.until(lambda: len(run.device.rows) == 3)
    for _ in range(5):
        run.step()
    run.watch.limit = ROOM_FOR_TWO
    run.step()
    assert {id.choice for id in run.device.rows} == {0, 1}
    run.watch.limit = ROOM_FOR_ONE
    run.step()
    assert {id.choice for id in run.device.rows} == {0}
    assert run.scheduler.load.waiting == 2
    run.watch.limit = PLENTY
    run.finish_right()


def test_its_unfinished_block_is_cut_before_it_is_dropped_and_it_goes_on_from_there() -> None:
    run = three()
    run.until(lambda: len(run.device.rows[id_of("c")]) % 4 == 3)  # two tokens beyond a block
    computed = run.computed
    had = len(run.device.rows[id_of("c")])
    run.watch.limit = ROOM_FOR_TWO
    run.step()
    [tail] = run.steps[-1].tails
    assert (tail.id, tail.length) == (id_of("c"), had - 1)
    assert run.steps[-1].drops == (id_of("c"),)
    run.watch.limit = PLENTY
    run.running("a", "b", "c")
    # One was in flight, and one is to be fed.
    assert run.computed - computed <= 2
    assert len(run.outputs["c", 0]) >= had - 10
    run.finish_right()


def test_a_prompt_under_way_goes_before_older_rows_and_keeps_its_blocks() -> None:
    run = Short()
    run.send("a", max_tokens=100)
    run.running("a")
    long = run.send("long", length=101)
    run.until(lambda: len(run.device.prefills.get(id_of("long"), ())) >= 40)
    read = run.computed
    run.watch.limit = 4400
    run.step()
    assert run.steps[-1].drops == (id_of("long"),)
    assert run.scheduler.load.prefilling == 0 and run.used[Relief.PREEMPT] == 1
    kept = run.cache.probe(long.tokens, b"").cached
    assert kept > 0
    run.watch.limit = PLENTY
    run.running("a", "long")
    assert run.computed - read == 100 - kept
    run.finish_right()


def test_an_older_prompt_under_way_stays_where_a_newer_row_has_to_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Preemption, "preempt_for_next", lambda *given: None
    )  # of x for y, the shorter one
    run = Short(limits=LIMITS)
    run.send("x", length=81)
    run.step()
    run.send("y", length=3)
    run.running("y")
    assert run.device.prefills
    run.watch.limit = 4400
    run.step()
    assert not run.rows and run.device.prefills
    run.watch.limit = PLENTY
    run.finish_right()


def test_a_row_with_a_token_under_way_goes_back_when_it_is_read() -> None:
    run = three()
    run.watch.limit = ROOM_FOR_TWO
    run.now += 1
    run._watch_memory()
    assert run.scheduler.load.waiting == 1
    assert not run.scheduler.queues.untouched_requests()
    run.step()
    run.watch.limit = PLENTY
    run.finish_right()


def test_who_is_cancelled_while_its_last_token_is_under_way_says_nothing_more() -> None:
    run = three()
    run.watch.limit = ROOM_FOR_TWO
    run._watch_memory()
    run.scheduler.cancel(RequestId("c"))
    said = len(run.outputs["c", 0])
    run.watch.limit = PLENTY
    run.finish()
    assert len(run.outputs["c", 0]) == said and ("c", 0) not in run.finishes
    assert set(run.finishes.values()) == {FinishReason.LENGTH}


def test_rows_that_no_longer_fit_because_they_grew_make_room_one_at_a_time() -> None:
    """No limit changes here: three answers of 700 tokens where there is room for two of that."""
    run = Short(memory=25_000, limits=WIDE)
    for name in "abc":
        run.send(name, max_tokens=700)
    run.running("a", "b", "c")
    run.running("a", "b")
    assert run.used[Relief.PREEMPT] == 1
    run.finish_right()
    assert run.used[Relief.PREEMPT] == 1 and not run.used[Relief.REJECT]


def test_a_limit_below_what_is_held_costs_no_more_rows_than_must_go() -> None:
    run = Short(limits=WIDE)
    for name in "abc":
        run.send(name, length=300, max_tokens=30)
    run.running("a", "b", "c")
    run.watch.limit = 9000  # they hold more; one of them would fit easily
    run.step()
    assert run.rows == {"a"} and not run.finishes


# -- who ends ----------------------------------------------------------------------------


def test_the_last_row_ends_as_at_its_limit_and_keeps_what_it_said() -> None:
    run = Short()
    request = run.send("a")
    run.running("a")
    for _ in range(9):
        run.step()
    run.watch.limit = 1000
    run.finish()
    said = run.outputs["a", 0]
    assert run.finishes["a", 0] is FinishReason.LENGTH
    assert said == right_answer(request, 0)[0][: len(said)] and len(said) >= 8
    assert run.used[Relief.REJECT] == 1 and not run.used[Relief.PREEMPT]


def who_waits_when_the_limit_falls(*, alone: bool) -> Short:
    run = Short(memory=20_000)
    if not alone:
        run.send("a")
        run.running("a")
    run.send("long", length=800, max_tokens=5)
    run.watch.limit = 10_000
    run.until(lambda: alone or ("a", 0) in run.finishes)
    run.step()
    run.step()
    return run


def test_who_has_not_begun_and_never_will_fit_ends() -> None:
    run = who_waits_when_the_limit_falls(alone=True)
    assert run.finishes == {("long", 0): FinishReason.MEMORY}
    assert not run.outputs and run.used[Relief.REJECT] == 1


def test_so_it_does_when_those_before_it_are_done() -> None:
    run = who_waits_when_the_limit_falls(alone=False)
    assert run.finishes.get(("long", 0)) is FinishReason.MEMORY


def test_that_end_tells_why() -> None:
    run = Short(memory=20_000)
    run.send("long", length=800, max_tokens=5)
    run.watch.limit = 10_000
    run.watch.begin(Ledger(10_000))
    [event] = run.scheduler.relieve(0)
    assert event.finish is FinishReason.MEMORY
    assert event.error.startswith("it needs 10.6 KB for its caches and 640 B for a step")
    assert event.error.endswith("held now: nothing held of 10 KB")
    assert not run.scheduler.has_work


def test_who_never_fits_is_refused_at_once_with_the_account() -> None:
    run = Short(memory=10_000)
    run.send("a")
    run.running("a")
    run.step()
    refused = run.scheduler.add(endless("long", 500, 5))
    assert isinstance(refused, Rejected)
    assert (refused.request_id, refused.waiting, refused.retry_after) == ("long", 0, 0)
    # 500 tokens, 256 that it may grow by, 256 that its buffers may be larger
    assert refused.no_room.startswith("it needs 10.1 KB for its caches and 640 B for a step, ")
    assert "the hot tier keeps 500 B; held now: live " in refused.no_room
    assert refused.no_room.endswith("of 10 KB")
    assert run.used[Relief.REJECT] == 1
    run.finish_right()


def test_who_just_fits_is_taken() -> None:
    run = Short(memory=10_000)
    # 9,500 are left by the floor; a step takes 640.
    most = (10_000 - 500 - 640) // TOKEN_BYTES - 2 * 256
    assert run.scheduler.add(endless("more", most + 1, 5)) is not None
    run.send("most", length=most, max_tokens=5)
    run.finish_right()
    assert not run.used[Relief.PREEMPT]


def test_no_more_choices_run_together_than_ever_fit() -> None:
    run = Short(memory=15_000)
    run.send("a", n=5, max_tokens=20)
    run.finish_right()
    joins = [len(chunk.joins) for step in run.steps for chunk in step.chunks]
    assert sorted(joins) == [1, 2, 2]
    assert not run.used[Relief.PREEMPT]


def test_choices_that_wait_are_taken_apart_where_they_no_longer_fit_together() -> None:
    run = Short()
    run.send("a", length=3, n=3, max_tokens=20)
    run.watch.limit = 4000
    run.finish_right()
    assert not run.used[Relief.REJECT]


def test_choices_that_do_not_even_fit_one_by_one_end_at_once() -> None:
    """Not a turn later: where nobody is at work there may be none for a while."""
    run = Short(memory=40_000)
    run.send("long", length=800, n=3, max_tokens=5)
    run.watch.limit = 9_000
    run._watch_memory()
    assert run.finishes == {("long", choice): FinishReason.MEMORY for choice in range(3)}
    assert not run.scheduler.has_work


def test_an_answer_that_grows_out_of_the_memory_ends_and_others_take_its_place() -> None:
    run = Short(memory=12_000, limits=WIDE)
    run.send("a", max_tokens=2000)
    run.send("b", max_tokens=20)
    run.finish()
    assert run.finishes["a", 0] is FinishReason.LENGTH
    assert 700 < len(run.outputs["a", 0]) < 1200
    assert len(run.outputs["b", 0]) == 20


# -- deadlines and missing memory --------------------------------------------------------


def test_a_deadline_ends_who_was_preempted_and_who_was_not_let_in() -> None:
    run = Short()
    for name, deadline in (("a", None), ("b", None), ("c", 30.0)):
        run.send(name, deadline=deadline)
    run.running("a", "b", "c")
    run.step()
    run.watch.limit = ROOM_FOR_TWO
    run.step()
    run.send("late", deadline=35.0)
    said = len(run.outputs["c", 0])
    while run.now < 50:
        run.step()
        assert (("c", 0) in run.finishes) == (run.now >= 30)
        assert (("late", 0) in run.finishes) == (run.now >= 35)
    assert run.finishes == {("c", 0): FinishReason.DEADLINE, ("late", 0): FinishReason.DEADLINE}
    assert len(run.outputs["c", 0]) <= said + 1 and ("late", 0) not in run.outputs
    run.finish()
    assert len(run.outputs["a", 0]) == len(run.outputs["b", 0]) == 60


def test_a_deadline_ends_who_was_preempted_a_moment_ago() -> None:
    run = Short()
    for name, deadline in (("a", None), ("b", 20.0)):
        run.send(name, deadline=deadline)
    run.running("a", "b")
    for _ in range(3):
        run.step()
    run.watch.limit = ROOM_FOR_ONE
    run._watch_memory()
    run.note(run.scheduler.expire(20))
    said = len(run.outputs["b", 0])
    run.finish()
    assert run.finishes == {("a", 0): FinishReason.LENGTH, ("b", 0): FinishReason.DEADLINE}
    assert len(run.outputs["b", 0]) == said


def test_where_memory_was_missing_all_choices_of_the_newest_at_work_end() -> None:
    run = Short(limits=replace(LIMITS, max_batch_size=3))
    run.send("a")
    run.step()
    run.send("b", n=3)
    run.until(lambda: len(run.device.rows) == 3)
    run.send("c")
    events = run.scheduler.fail_newest()
    assert {(e.request_id, e.index, e.finish) for e in events} == {
        ("b", choice, FinishReason.MEMORY) for choice in range(3)
    }
    assert all("it needs" in event.error for event in events)
    run.note(events)
    run.finish()
    assert run.finishes["a", 0] is run.finishes["c", 0] is FinishReason.LENGTH


def test_where_nobody_is_at_work_nobody_ends() -> None:
    run = Short()
    run.send("a")
    assert run.scheduler.fail_newest() == []
    run.finish_right()
