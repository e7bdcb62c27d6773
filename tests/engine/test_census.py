"""What models have counted: nothing of it falls, however they come, leave and crash."""

import asyncio
from collections import Counter

import pytest

from omlx_server.core.memory.guard import Relief
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.scheduler.limits import Load
from omlx_server.engine.census import Census
from omlx_server.engine.messages import Counted, EngineState, Status
from omlx_server.errors import InternalError
from tests.engine.running import CrashingScheduler, Running, collect, request


class Model:
    """`seen` is what its last turn told, a while ago."""

    def __init__(self, seen: int, now: int) -> None:
        self.status = Status(
            EngineState.READY, Load(0, 0, 0), 0.0, counted=Counted(self._report(seen))
        )
        self._now = now

    def tally(self) -> Counted:
        return Counted(self._report(self._now), Counter({Relief.PREEMPT: 1}))

    def _report(self, queried: int) -> CacheReport:
        misses = {"new_prefix": queried, "none": 1}
        return CacheReport(nbytes=9, budget=90, queried_tokens=queried, misses=misses)


def test_what_was_counted_outlives_the_model() -> None:
    census = Census()
    census.add(1, "a", Model(seen=5, now=7))
    census.add(2, "b", Model(seen=1, now=1))
    assert census.counted["a"].cache.queried_tokens == 5
    census.remove(1)
    gone = census.counted["a"]
    assert (gone.cache.queried_tokens, gone.cache.nbytes, gone.cache.budget) == (7, 0, 0)
    assert (gone.reliefs[Relief.PREEMPT], gone.cache.misses) == (1, {"new_prefix": 7, "none": 1})
    census.add(3, "a", Model(seen=2, now=3))
    again = census.counted["a"]
    assert (again.cache.queried_tokens, again.cache.nbytes) == (9, 9)
    assert again.cache.misses == {"new_prefix": 9, "none": 2}
    census.remove(3)
    census.remove(3)
    assert census.counted["a"].cache.queried_tokens == 10
    assert census.counted["b"].cache.queried_tokens == 1
    assert sum((one.reliefs for one in census.unloaded), Counter()) == {Relief.PREEMPT: 2}


def test_who_never_came_can_leave() -> None:
    census = Census()
    census.remove(1)
    assert census.counted == {}


def test_a_crash_of_the_loop_forgets_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the last one, after which the model is of no use."""
    monkeypatch.setattr("omlx_server.engine.model_instance.Scheduler", CrashingScheduler)
    monkeypatch.setattr(CrashingScheduler, "crashes", 0)

    def queried(running: Running) -> int:
        return running.engine.whole.counted[""].cache.queried_tokens

    async def run() -> None:
        running = Running()
        async with running as engine:
            await collect(await engine.submit(request("a", [1, 2, 3, 4])))
            seen = [queried(running)]
            assert seen[0] > 0
            for number in range(3):
                CrashingScheduler.crashes = 1 if number < 2 else 3
                generation = await engine.submit(request(f"b{number}", [1, 2, 3, 4]))
                if number == 2:
                    with pytest.raises(InternalError):
                        await collect(generation)
                else:
                    await collect(generation)
                seen.append(queried(running))
            assert engine.status.state is EngineState.FAILED
        assert sorted(seen) == seen and seen[2] > seen[1] > seen[0]

    asyncio.run(run())
