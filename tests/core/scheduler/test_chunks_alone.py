"""Chunks are larger while no row decodes and no other model is at work."""

from dataclasses import replace

import pytest

from omlx_server.core.blocks.block import NOTHING_KEPT
from omlx_server.core.memory.guard import MemoryGuard, Relief
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.scheduler import Scheduler
from omlx_server.core.step import Chunk
from tests.core.short import PLENTY, Short
from tests.core.simulator import PLANNER, ROOMY, make_request, nobody_beside

LIMITS = SchedulerLimits(
    max_batch_size=4, prefill_chunk_tokens=8, alone_chunk_tokens=32, max_batched_tokens=64
)


def bounds(chunk: Chunk) -> tuple[int, int]:
    return chunk.start, chunk.stop


def chunks(run: Short, name: str) -> list[tuple[int, int]]:
    """The first token of each chunk of a prompt, and the one behind its last."""
    found = [chunk for step in run.steps for chunk in step.chunks]
    return [bounds(chunk) for chunk in found if chunk.prefill.request == name]


def test_a_prompt_that_is_alone_is_prefilled_in_large_chunks() -> None:
    run = Short(limits=LIMITS)
    run.send("a", 81, 1)
    run.finish_right()
    assert chunks(run, "a") == [(0, 32), (32, 64), (64, 80)]


def test_beside_a_row_it_is_prefilled_in_small_ones() -> None:
    run = Short(limits=LIMITS)
    run.send("row", 2, 500)
    run.running("row")
    run.send("a", 29, 1)
    run.finish_right()
    assert chunks(run, "a") == [(0, 8), (8, 16), (16, 24), (24, 28)]


def test_it_goes_on_in_large_chunks_when_the_row_has_ended_and_ends_them_where_others_end() -> None:
    run = Short(limits=LIMITS)
    run.send("row", 2, 3)
    run.running("row")
    run.send("a", 81, 1)
    run.finish_right()
    first, *rest = chunks(run, "a")
    assert first == (0, 8)
    assert rest[-2:] == [(32, 64), (64, 80)]
    assert all(stop in (16, 24, 32) for _, stop in rest[:-2])


def test_while_another_model_is_at_work_chunks_are_small() -> None:
    """That model's rows would wait for them, and so would one that is being loaded."""
    share = nobody_beside()
    guard = MemoryGuard(PLENTY, PLANNER, share)
    scheduler = Scheduler(LIMITS, PrefixCache(NOTHING_KEPT, "none", ROOMY), guard)
    scheduler.add(make_request("a", 81, 1))

    def planned() -> list[tuple[int, int]]:
        step = scheduler.schedule(0.0)
        assert step is not None
        return [bounds(chunk) for chunk in step.chunks]

    assert planned() == [(0, 32)]
    other = share.account.share(0)
    assert planned() == [(32, 40)]
    other.leave()
    assert planned() == [(40, 64)]


def test_where_memory_is_short_they_shrink_as_far_as_others() -> None:
    wide = replace(LIMITS, prefill_chunk_tokens=64, alone_chunk_tokens=512, max_batched_tokens=512)
    run = Short(limits=wide)
    run.send("a", 400, 2)
    run.watch.limit = 8000
    run.finish_right()
    [first, *_] = chunks(run, "a")
    assert first == (0, 128)
    assert run.used[Relief.CHUNK]


@pytest.mark.parametrize("other", [{"alone_chunk_tokens": 16}, {"prefill_chunk_tokens": 16}])
def test_they_do_not_change_while_the_model_is_loaded(other: dict[str, int]) -> None:
    run = Short(limits=LIMITS)
    with pytest.raises(ValueError, match="can't change their size"):
        run.scheduler.change(replace(LIMITS, **other))  # type: ignore[arg-type]
