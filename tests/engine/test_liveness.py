"""Everyone is answered, whatever happens: random worlds, and flaws that they have to find.

LIVENESS_WORLDS=5000 pytest tests/engine/test_liveness.py      other worlds each time
"""

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from omlx_server.compute.hardware import device_policy
from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.cold.read_ahead import ColdWaits
from omlx_server.core.memory.guard import Caches, MemoryGuard
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.core.scheduler.scheduler import Scheduler
from omlx_server.engine.step_loop import StepLoop
from omlx_server.store.cold import ColdTier
from omlx_server.store.reads import ReadQueue
from tests.core.simulator import KV
from tests.engine.liveness import Stop, World
from tests.engine.pretend import Fate
from tests.engine.worlds import Act, Arrive, Change, Fault, Plan, draw
from tests.sweeps import wide

WORLDS = int(os.environ.get("LIVENESS_WORLDS", "0"))
ENOUGH = 300  # worlds in which a planted flaw has to show


@settings(
    max_examples=WORLDS or 100,
    derandomize=not WORLDS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.randoms(use_true_random=False))
def test_everyone_is_answered_in_any_world(rng: Random) -> None:
    plan = draw(rng)
    note(repr(plan))
    World(plan).run()


@pytest.mark.parametrize("first", [0, *wide([80, 160])])
def test_so_it_is_in_worlds_of_many_requests(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn evenly: the worlds above are the simpler ones."""
    for seed in range(first, first + 80):
        policy = device_policy.GPU if seed % 2 else device_policy.CPU
        monkeypatch.setattr(device_policy, "current", lambda policy=policy: policy)
        try:
            World(draw(Random(seed))).run()
        except AssertionError as error:
            raise AssertionError(f"in the world of seed {seed}") from error


# -- planted flaws -----------------------------------------------------------------------


def keeps_a_claim(patch: pytest.MonkeyPatch) -> None:
    leave = PrefixCache.leave

    def forgets(self: PrefixCache, handle: PrefixHandle) -> None:
        claims = dict(self._claims)
        leave(self, handle)
        self._claims |= {key: claims[key] for key in list(claims)[:1]}

    patch.setattr(PrefixCache, "leave", forgets)


def keeps_a_lease(patch: pytest.MonkeyPatch) -> None:
    def forgets(self: PrefixCache, handle: PrefixHandle) -> None:
        for held in handle.leased[1:]:
            self.index.release(held)
        handle.leased = []

    patch.setattr(PrefixCache, "let_go", forgets)


def waits_for_reads_without_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReadQueue, "give_up_late", lambda self: None)


def forgets_who_asked(patch: pytest.MonkeyPatch) -> None:
    def forgets(self: ColdWaits, question: int) -> None:
        self._asking.pop(question)

    patch.setattr(ColdWaits, "take_answer", forgets)


def lets_the_first_block_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_refuse_the_too_large", lambda self: [])


def rests_after_a_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepLoop, "is_at_rest", property(lambda self: self._pipeline.is_empty))


def is_not_woken_by_the_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ColdTier, "__setattr__", _without_wake)


def _without_wake(tier: ColdTier, name: str, value: object) -> None:
    object.__setattr__(tier, name, (lambda: None) if name == "wake" else value)


def reserves_for_ever(patch: pytest.MonkeyPatch) -> None:
    reserve = MemoryGuard.reserve

    def keeps(self: MemoryGuard, caches: Caches) -> None:
        before = self.reserved
        reserve(self, caches)
        self.reserved = max(before, self.reserved)

    patch.setattr(MemoryGuard, "reserve", keeps)


def loses_who_was_preempted(patch: pytest.MonkeyPatch) -> None:
    def forgets(self: SequenceQueues, sequence: Any) -> None:
        if sequence.in_flight:
            return
        self.preempted.pop(sequence.id, None)

    patch.setattr(SequenceQueues, "requeue_when_read", forgets)


FLAWS = [
    keeps_a_claim,
    keeps_a_lease,
    waits_for_reads_without_end,
    forgets_who_asked,
    lets_the_first_block_for_ever,
    rests_after_a_step,
    is_not_woken_by_the_disk,
    reserves_for_ever,
    loses_who_was_preempted,
]


@pytest.mark.parametrize("plant", FLAWS, ids=lambda plant: plant.__name__)
def test_a_planted_flaw_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(ENOUGH):
            World(draw(Random(seed))).run()


# A share of the time that is forgotten keeps nobody for ever. It will be found by a law about
# waits within a class.


# -- what the worlds have found ----------------------------------------------------------


def plan(*acts: Act, memory: int | None = None) -> Plan:
    return Plan(
        limits=SchedulerLimits(max_batch_size=1, prefill_chunk_tokens=16, max_batched_tokens=16),
        layouts=(KV,),
        memory=memory,
        hot=HotBudget(1 << 20, 1 << 20),
        cold=None,
        listed=True,
        write_through=False,
        fates=(Fate(),),
        acts=tuple((0.0, act) for act in acts),
    )


def arrive(name: str, length: int = 5) -> Arrive:
    tokens = tuple(number % 5 for number in range(length))
    return Arrive(Request(RequestId(name), tokens, SamplingParams(max_tokens=20)))


CRASH = Fault("crash", guilty=False)


def test_who_waits_is_answered_when_a_restart_has_no_room_for_it() -> None:
    """It was accepted when there was more memory."""
    change = Change(rows=1, share=0.0, memory=5_000)
    world = World(plan(arrive("a"), arrive("b"), change, CRASH, memory=40_000))
    world.run()
    assert not world.step_loops[0].failed and not world.open


def test_a_model_that_has_failed_answers_who_comes_and_reserves_nothing() -> None:
    crashes = [CRASH] * 5  # its requests go on after two
    acts: list[Act] = [arrive("a"), arrive("b"), arrive("c"), arrive("d"), *crashes]
    world = World(plan(*acts, memory=40_000))
    world.run()
    assert world.step_loops[0].failed and not world.step_loops[0].instance.reserved
    world.failed.clear()  # its client has not heard of it
    world._do(arrive("late"))
    world._turn_engine()
    assert not world.open, "accepted by a model that does nothing any more"


def test_a_world_that_stops_says_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "schedule", lambda self, now: None)
    with pytest.raises(Stop, match="somebody could go on"):
        World(plan(arrive("a"))).run()
