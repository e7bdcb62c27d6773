"""What each request is said to wait for, and how a scheduler takes in those of another one."""

from dataclasses import replace

import pytest

from omlx_server.core.blocks.block import CacheLayout
from omlx_server.core.blocks.record import Record
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import RequestId
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.scheduler import Scheduler
from omlx_server.core.scheduler.sequence import PrefillState
from omlx_server.core.scheduler.standings import Standing, Standings, WaitReason
from tests.core.simulator import HYBRID, KV, ROOMY, Foreseen, Run, make_request, right_answer

LIMITS = SchedulerLimits(
    max_batch_size=4, max_queue=9, prefill_chunk_tokens=8, max_batched_tokens=32
)


def standings(run: Run) -> dict[str, Standing]:
    return {standing.request: standing for standing in run.scheduler.standings.all(run.now)}


def awaited(run: Run) -> dict[str, tuple[str, WaitReason]]:
    return {name: (one.place, one.waits_for) for name, one in standings(run).items()}


def waiting(run: Run, name: str) -> PrefillState:
    queues = run.scheduler.queues
    return next(prefill for prefill in queues.waiting if prefill.request.id == name)


def test_who_was_not_looked_at_waits_for_its_turn() -> None:
    run = Run(LIMITS)
    run.scheduler.add(make_request("a", 5, 3, n=3))
    [standing] = run.scheduler.standings.all(0)
    place, choices, prompt = standing.place, standing.choices, standing.prompt
    assert (place, choices, prompt, standing.computed) == ("waiting", 3, 4, 0)
    assert standing.waits_for is WaitReason.TURN


def test_who_is_at_work_waits_for_a_step() -> None:
    run = Run(LIMITS)
    run.scheduler.add(make_request("long", 40, 3))
    run.scheduler.add(make_request("a", 5, 30))
    run.step()
    run.step()
    found = standings(run)
    assert (found["long"].place, found["long"].waits_for) == ("active", WaitReason.STEP)
    assert 0 < found["long"].computed < found["long"].prompt
    assert (found["a"].place, found["a"].waits_for) == ("running", WaitReason.STEP)


def test_who_has_no_row_waits_for_one() -> None:
    run = Run(replace(LIMITS, max_batch_size=2))
    run.scheduler.add(make_request("a", 5, 30, n=2))
    run.step()
    run.scheduler.add(make_request("b", 5, 3))
    assert awaited(run)["b"] == ("waiting", WaitReason.ROWS)


def test_who_has_the_same_beginning_waits_for_its_blocks() -> None:
    run = Run(LIMITS, KV)
    run.scheduler.add(make_request("a", 60, 3))
    run.step()
    run.scheduler.add(replace(make_request("a", 60, 3), id=RequestId("b")))
    assert awaited(run) == {
        "a": ("active", WaitReason.STEP),
        "b": ("waiting", WaitReason.BLOCK),
    }


def test_who_has_asked_the_cold_tier_waits_for_it() -> None:
    run = Run(LIMITS, KV)
    run.scheduler.add(make_request("a", 60, 3))
    handle = waiting(run, "a").handle
    run.cache.read_ahead.waits.ask(handle, [Record("model", handle.root, 0, handle.tokens[:4])])
    assert awaited(run)["a"] == ("waiting", WaitReason.COLD)


def test_who_does_not_fit_beside_others_waits_for_memory() -> None:
    run = Run(LIMITS, memory=10_000)
    assert run.scheduler.add(make_request("a", 300, 100)) is None
    run.step()
    assert run.scheduler.add(make_request("b", 300, 3)) is None
    run.step()
    assert awaited(run)["b"] == ("waiting", WaitReason.MEMORY)


def test_a_glance_asks_no_admission_and_evicts_nothing() -> None:
    run = Run(LIMITS, memory=10_000)
    assert run.scheduler.add(make_request("a", 300, 100)) is None
    run.step()
    assert run.scheduler.add(make_request("b", 300, 3)) is None
    run.step()
    scheduler, before = run.scheduler, run.cache.report()
    looked = Standings(scheduler.queues, run.cache, scheduler.admission, LIMITS)
    found = {str(standing.request): standing for standing in looked.glance()}
    assert (found["b"].place, found["b"].waits_for) == ("waiting", WaitReason.TURN)
    assert found["a"].place in ("active", "running")
    assert run.cache.report() == before


def test_a_line_has_nothing_of_the_prompt_or_of_the_answer() -> None:
    standing = Standing(RequestId("req_1"), "waiting", 2, 812, 64, 3, WaitReason.ROWS, 100.0)
    assert standing.line(112.34) == (
        "req_1 is waiting, of 12.3 s: 812 tokens to read, 64 computed, 2 choices, 3 tokens "
        "written, waits for rows"
    )


# --- A new start ----------------------------------------------------------------------------------


def start_over(run: Run) -> None:
    """What an instance does: nothing computed or kept is left but the sequences."""
    groups = run.scheduler.queues.groups()
    run._ahead = None
    run.device.rows, run.device.prefills, run.device.kept = {}, {}, {}
    run.cache = PrefixCache(run.cache.layout, "model", ROOMY)
    run.scheduler = Scheduler(run.device.limits, run.cache)
    run.scheduler.queues.take_in(groups)
    run.scheduler.check_invariants()


@pytest.mark.parametrize("layout", [KV, HYBRID], ids=["blocks", "states"])
def test_a_new_start_at_any_step_costs_nobody_a_token(layout: CacheLayout) -> None:
    requests = [
        make_request("a", 30, 12, n=2),
        make_request("b", 9, 20, constraint=Foreseen()),
        make_request("c", 45, 7),
        replace(make_request("c", 45, 9), id=RequestId("d")),
        make_request("e", 5, 15, n=3),
    ]
    for at in range(40):
        run = Run(LIMITS, layout)
        for request in requests:
            run.scheduler.add(request)
        for _ in range(at):
            run.step()
        start_over(run)
        run.finish()
        for request in requests:
            for choice in range(request.n):
                output, why = right_answer(request, choice)
                assert run.outputs.get((request.id, choice), []) == output, at
                assert run.finishes[request.id, choice] is why, at


def test_who_wait_keep_their_places_behind_those_who_were_at_work() -> None:
    run = Run(replace(LIMITS, max_batch_size=1), KV)
    for name in "abc":
        run.scheduler.add(make_request(name, 5, 30))
    run.step()
    start_over(run)
    assert [prefill.request.id for prefill in run.scheduler.queues.waiting] == ["a", "b", "c"]


def test_more_than_the_queue_may_hold_are_taken_in() -> None:
    run = Run(replace(LIMITS, max_queue=2), KV)
    run.scheduler.add(make_request("a", 5, 30, n=4))
    run.step()
    for name in "bc":
        run.scheduler.add(make_request(name, 5, 3))
    start_over(run)
    run.finish()
    assert len(run.finishes) == 6


def test_who_is_taken_in_waits_for_no_read() -> None:
    run = Run(LIMITS, KV)
    run.scheduler.add(make_request("a", 60, 3))
    handle = waiting(run, "a").handle
    run.cache.read_ahead.waits.ask(handle, [Record("model", handle.root, 0, handle.tokens[:4])])
    start_over(run)
    assert awaited(run)["a"] == ("waiting", WaitReason.TURN)
