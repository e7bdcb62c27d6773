"""An instance whose bounds change while it works: who is there goes on, and every answer is the one
of the naive loop."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from omlx_server.compute.planning.model_shape import shape_of
from omlx_server.core.memory.estimate import FlatPlanner
from omlx_server.core.memory.guard import MemoryGuard
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import FinishReason, Request, RequestId
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from tests.compute.cold_cache import Steady
from tests.compute.drive import ROOMY, Drive, sampling
from tests.compute.oracle import is_greedy
from tests.core.simulator import nobody_beside
from tests.tiny_models import VOCAB, load_tiny

LIMITS = SchedulerLimits(
    max_batch_size=4, max_queue=64, prefill_chunk_tokens=16, max_batched_tokens=64
)
BLOCK = 8


def prompt(seed: object, length: int = 40) -> list[int]:
    rng = random.Random(str(seed))
    return [rng.randrange(VOCAB) for _ in range(length)]


def drive_with(directory: Path | None = None) -> Drive:
    cold = None
    if directory is not None:
        cold = ColdTier(Files(directory), b"s" * 32, budget=1 << 40, queue_bytes=1 << 30)
    return Drive(load_tiny("llama"), LIMITS, BLOCK, cold=cold)


def run_until(drive: Drive, happens: Callable[[], bool]) -> None:
    for _ in range(3000):
        if happens():
            return
        drive.step()
    raise AssertionError("it does not happen")


def files(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


def check(drive: Drive, prompts: dict[str, list[int]]) -> None:
    """Nobody is lost, and nobody noticed."""
    run_until(drive, lambda: not drive.instance.scheduler.has_work)
    drive.finish()
    for name, tokens in prompts.items():
        answers = {k: v for k, v in drive.answers.items() if k.split("/")[0] == name}
        assert answers, f"{name} is lost"
        for key, answer in answers.items():
            assert drive.ends[key] is FinishReason.LENGTH
            assert is_greedy(drive.loaded.model, tokens, answer), key


def test_fewer_rows_and_then_more() -> None:
    drive = drive_with()
    prompts = {f"r{n}": prompt(n) for n in range(6)}
    for name, tokens in prompts.items():
        drive.add(name, tokens, sampling(12), n=4 if name == "r5" else 1)
    run_until(drive, lambda: drive.instance.scheduler.load.running == 4)
    drive.instance.change_limits(replace(LIMITS, max_batch_size=2), write_through=False)
    most = []
    while drive.instance.scheduler.load.waiting:
        drive.step()
        most.append(drive.instance.scheduler.load.running)
        drive.instance.check_invariants()
    assert 2 in most[2:], "nobody is let in any more"
    assert drive.instance.scheduler.load.prefilling + most[-1] <= 4
    check(drive, prompts)
    assert sum(len(drive.answers[f"r5/{choice}"]) for choice in range(4)) == 4 * 12
    drive.instance.change_limits(replace(LIMITS, max_batch_size=6), write_through=False)
    more = {f"m{n}": prompt(n) for n in range(6)}
    for name, tokens in more.items():
        drive.add(name, tokens, sampling(12))
    run_until(drive, lambda: drive.instance.scheduler.load.running == 6)
    check(drive, more)


def test_a_shorter_queue_keeps_who_is_in_it() -> None:
    drive = drive_with()
    prompts = {f"r{n}": prompt(n) for n in range(8)}
    for name, tokens in prompts.items():
        drive.add(name, tokens, sampling(4))
    drive.instance.change_limits(replace(LIMITS, max_queue=2), write_through=False)
    late = Request(RequestId("late"), tuple(prompt("late")), sampling(4))
    assert drive.instance.scheduler.add(late) is not None
    check(drive, prompts)
    assert drive.instance.scheduler.add(late) is None


def test_chunks_keep_their_size() -> None:
    """Else warm and cold runs would not agree."""
    with pytest.raises(ValueError, match="chunks"):
        drive_with().instance.change_limits(
            replace(LIMITS, prefill_chunk_tokens=32), write_through=False
        )


def test_a_smaller_hot_tier_lets_go_at_once() -> None:
    drive = drive_with()
    for n in range(4):
        drive.answer(f"r{n}", prompt(n), 4)
    index = drive.instance.cache.index
    half = index.nbytes // 2
    drive.instance.cache.budget = HotBudget(half, half)
    assert 0 < index.nbytes <= half
    drive.instance.drop_evicted()
    drive.instance.check_invariants()
    check(drive, {"r0": prompt(0), "r3": prompt(3)})


def test_without_its_cold_tier_who_waits_for_it_goes_on(tmp_path: Path) -> None:
    drive = drive_with(tmp_path)
    cold = drive.cold
    assert cold is not None
    prompts = {"r0": prompt(0, 80), "r1": prompt(1, 80)}
    for name, tokens in prompts.items():
        drive.answer(name, tokens, 4)
    drive.instance.cache.budget = HotBudget(0, 0, buffers=0)
    drive.instance.drop_evicted()
    while cold.report().queued:
        drive.instance.tiers.recall()
    drive.instance.cache.budget, drive.instance.cache.read_ahead.rates = ROOMY, Steady()
    drive.add("again-r0", prompts["r0"], sampling(4))
    drive.instance.tiers.recall()
    drive.add("again-r1", prompts["r1"], sampling(4))
    assert drive.instance.cache.read_ahead.waits.take_reads(), "nobody waits for the cold tier"
    drive.instance.tiers.leave_cold()
    cold.close(0)
    written = files(tmp_path)
    check(drive, {f"again-{name}": tokens for name, tokens in prompts.items()})
    assert drive.computed["again-r1"] > 60, "it came from a tier that is not there"
    drive.instance.start_over()
    drive.instance.cache.budget = HotBudget(0, 0, buffers=0)
    drive.answer("last", prompt(2), 4)
    assert files(tmp_path) == written
    assert drive.instance.tiers.cold is None


def test_a_smaller_cold_tier_deletes_at_once(tmp_path: Path) -> None:
    drive = drive_with(tmp_path)
    cold = drive.cold
    assert cold is not None
    for n in range(4):
        drive.answer(f"r{n}", prompt(n, 64), 4)
    drive.instance.cache.budget = HotBudget(0, 0, buffers=0)
    drive.instance.drop_evicted()
    while cold.report().queued:
        drive.instance.tiers.recall()
    nbytes, count = cold.index.nbytes, len(files(tmp_path))
    cold.change(nbytes // 2, 1 << 20, 0)
    assert 0 < cold.index.nbytes <= nbytes // 2
    cold.close(10)
    assert len(files(tmp_path)) < count - len(cold.index) // 2


def test_it_is_known_who_would_not_fit_under_a_lower_limit() -> None:
    drive = drive_with()
    shape = shape_of(drive.loaded)
    planner = FlatPlanner(shape, 1 << 10)
    drive.add("short", prompt("s", 20), sampling(40))
    drive.add("long", prompt("l", 2000), sampling(40), n=2)
    long = planner.live([2256] * 2)
    guard = MemoryGuard(1 << 40, planner, nobody_beside())
    fits = {
        name: drive.instance.scheduler.all_fit(guard.under(limit, 0))
        for name, limit in (("half", long // 2), ("whole", 2 * long))
    }
    assert fits == {"half": False, "whole": True}
    scheduler = drive.instance.scheduler
    run_until(drive, lambda: not scheduler.load.prefilling and scheduler.load.running > 1)
    assert not drive.instance.scheduler.all_fit(guard.under(long // 2, 0)), "not of those at work"
    drive.cancel("long")
    assert drive.instance.scheduler.all_fit(guard.under(long // 2, 0))
    assert guard.limit == 1 << 40


@pytest.mark.parametrize("seed", range(4))
def test_whatever_changes_when_all_answers_are_those_of_the_naive_loop(
    seed: int, tmp_path: Path
) -> None:
    rng, drive = random.Random(seed), drive_with(tmp_path)
    prompts: dict[str, list[int]] = {}
    leaves_at = rng.randrange(20, 100)
    for step in range(120):
        if rng.random() < 0.15:
            name = f"r{len(prompts)}"
            prompts[name] = prompt(rng.randrange(4), rng.randrange(3, 90))
            drive.add(name, prompts[name], sampling(rng.randrange(1, 12)), n=rng.choice([1, 1, 3]))
        if rng.random() < 0.1:
            rows, share = rng.randrange(1, 6), rng.choice([0, 0.2, 0.5])
            limits = replace(LIMITS, max_batch_size=rows, decode_share=share)
            drive.instance.change_limits(limits, write_through=rng.random() < 0.5)
        if rng.random() < 0.1:
            room = rng.choice([0, 20_000, 1 << 30])
            drive.instance.cache.budget = HotBudget(room, room)
            drive.instance.drop_evicted()
        if step == leaves_at:
            drive.instance.tiers.leave_cold()
        drive.step()
    check(drive, prompts)
