"""The scheduler by random operations: thousands of requests over an alphabet of seven tokens.

Whatever happens around it (arrivals, cancels, lost devices, failures), a request that is left
alone gets exactly its right answer, once, and every rule of the device holds in every step.
"""

import random

import pytest

from omlx_server.core.blocks.block import CacheLayout, LayerKind
from omlx_server.core.memory.guard import Relief
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.request import FinishReason, Request, RequestId
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.speculation.methods import DraftVerification
from tests.core.simulator import (
    HYBRID,
    KV,
    RECURRENT,
    WINDOWED,
    Foreseen,
    Run,
    make_request,
    right_answer,
)
from tests.sweeps import wide

STEPS = 400
VERIFIES = (DraftVerification.NEVER, DraftVerification.ALONE, DraftVerification.ALWAYS)


LONG = CacheLayout(frozenset({LayerKind.DELTA}), block_size=16)
LAYOUTS = (None, KV, WINDOWED, HYBRID, RECURRENT, LONG)


@pytest.mark.parametrize("seed", [*range(12), *wide(range(12, 40))])
def test_every_request_left_alone_gets_its_answer(seed: int) -> None:
    """With caches of every kind, roomy and far too small."""
    rng = random.Random(seed)
    limits = SchedulerLimits(
        max_batch_size=rng.choice([1, 2, 4, 8]),
        max_queue=rng.choice([3, 20]),
        prefill_chunk_tokens=rng.choice([1, 4, 8]),
        alone_chunk_tokens=rng.choice([None, 8, 16]),
        max_batched_tokens=rng.choice([8, 32]),
        verify=rng.choice(VERIFIES),
        most_places=rng.choice([8, 64]),
    )
    room = rng.choice([0, 200, 600, 2000, 1 << 30])
    budget = HotBudget(room, rng.choice([0, room // 2, room]), lattice_start=rng.choice([2, 8]))
    layout, drafter = LAYOUTS[seed % len(LAYOUTS)], seed % 5 < 3
    beside_host = seed % 3 == 0
    run = Run(limits, layout, budget, drafts=True, drafter=drafter, beside_host=beside_host)
    accepted: dict[str, Request] = {}
    disturbed: set[tuple[str, int | None]] = set()
    for number in range(STEPS):
        _act(rng, run, number, accepted, disturbed)
        run.step(rng.choice([0.0, 0.1, 1.0]))
    run.finish()
    _check(run, accepted, disturbed)


@pytest.mark.parametrize("seed", [*range(12), *wide(range(12, 40))])
def test_so_it_does_where_memory_is_short(seed: int) -> None:
    """A limit that fits a part of the load, and changes: the simulator asserts that it holds, and
    everybody gets the right answer all the same."""
    rng = random.Random(seed)
    limits = SchedulerLimits(
        max_batch_size=rng.choice([2, 4, 8]),
        max_queue=20,
        prefill_chunk_tokens=rng.choice([4, 8]),
        alone_chunk_tokens=rng.choice([None, 8, 32]),
        max_batched_tokens=32,
        decode_share=rng.choice([0, 0.3]),
    )
    room = rng.choice([600, 4000, 1 << 30])
    budget = HotBudget(room, room // 2, lattice_start=4)
    sizes = [8_000, 18_000, 40_000]
    layout, drafter = LAYOUTS[seed % len(LAYOUTS)], seed % 5 < 3
    memory, beside_host = rng.choice(sizes), seed % 3 == 0
    run = Run(limits, layout, budget, memory, drafts=True, drafter=drafter, beside_host=beside_host)
    assert run.guard is not None
    accepted: dict[str, Request] = {}
    disturbed: set[tuple[str, int | None]] = set()
    for number in range(STEPS):
        _act(rng, run, number, accepted, disturbed)
        if rng.random() < 0.05:
            run.guard.limit = rng.choice(sizes)
        run.step(rng.choice([0.0, 0.1, 1.0]))
    run.finish()
    _check(run, accepted, disturbed)
    assert not run.guard.used[Relief.REJECT]
    if limits.max_batch_size == 8:
        assert run.guard.used[Relief.PAUSE]


def _act(
    rng: random.Random,
    run: Run,
    number: int,
    accepted: dict[str, Request],
    disturbed: set[tuple[str, int | None]],
) -> None:
    what = rng.random()
    if what < 0.4:
        length = rng.choice([1, 1, 2, 3, 8, 9, 16, 17, 30])
        request = make_request(
            f"r{number}",
            length,
            rng.choice([1, 2, 5, 20]),
            n=rng.choice([1, 1, 1, 2, 5]),
            arrived=run.now,
            priority=rng.choice([0, 0, 0, 1]),
            constraint=rng.choice([None, Foreseen()]),
        )
        if run.scheduler.add(request) is None:
            accepted[request.id] = request
    elif what < 0.5 and accepted:
        name = rng.choice(list(accepted))
        index = rng.choice([None, 0, 1])
        run.scheduler.cancel(RequestId(name), index)
        disturbed.add((name, index))
    elif what < 0.52:
        run.lose_everything()


def _check(run: Run, accepted: dict[str, Request], disturbed: set[tuple[str, int | None]]) -> None:
    assert not run.device.rows and not run.device.prefills, "rows were left behind"
    assert set(run.outputs) | set(run.finishes) <= {
        (name, choice) for name, request in accepted.items() for choice in range(request.n)
    }
    for name, request in accepted.items():
        for choice in range(request.n):
            output, finish = right_answer(request, choice)
            got = run.outputs.get((name, choice), [])
            if (name, None) in disturbed or (name, choice) in disturbed:
                assert got == output[: len(got)], "a wrong token before a cancel"
                continue
            assert got == output
            assert run.finishes[name, choice] is finish


def test_a_failed_chunk_ends_its_own_request_only() -> None:
    run = Run(SchedulerLimits(max_batch_size=4, prefill_chunk_tokens=8, max_batched_tokens=32))
    for name, length in (("a", 4), ("b", 20), ("c", 5)):
        run.scheduler.add(make_request(name, length, 3))
    step = run.scheduler.schedule(0)
    assert step is not None
    chunk = next(c for c in step.chunks if c.prefill.request == "b")
    run.device.execute(step)
    run.device.run_chunks(step)
    run.note(run.scheduler.fail(chunk, "planted"))
    run.finish()
    assert run.finishes["b", 0] is FinishReason.ERROR
    for name in ("a", "c"):
        request = make_request(name, 4 if name == "a" else 5, 3)
        assert run.outputs.get((name, 0), []) == right_answer(request, 0)[0]
