"""A real engine on a machine that runs short: the hot tier gives way, and all comes back."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from omlx_server.core.memory.guard import Relief
from omlx_server.core.memory.pressure import NO_PRESSURE, MachineReading, MemoryPressure
from omlx_server.core.scheduler import watchdog
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.engine.client.machine_watch import MachineWatch
from omlx_server.engine.memory.account import MemoryAccount
from tests.compute.oracle import is_greedy
from tests.engine.alone import Alone
from tests.engine.running import Running, collect, request, some, until
from tests.engine.watched import oracle, watched_instance

MB = 1 << 20
PLENTY = MachineReading(1 << 34, 1 << 33)
CRITICAL = MachineReading(1 << 34, 100 * MB)
NOTHING_LEFT = MachineReading(1 << 34, 0)
LIMITS = SchedulerLimits(
    max_batch_size=4, max_queue=8, prefill_chunk_tokens=64, max_batched_tokens=64
)


class Place:
    """An engine with `room` bytes above its weights. A look at the machine takes no time, but
    counts as two seconds."""

    def __init__(self, room: int = 64 * MB) -> None:
        self.account = MemoryAccount(0)
        self.running = Running(watched_instance(room, LIMITS, self.account), self.account)
        self.reading: MachineReading | Exception = PLENTY
        self.is_on = True
        self.now = 0.0

    async def __aenter__(self) -> "Place":
        self.engine: Alone = await self.running.__aenter__()
        await until(lambda: self.engine.whole.memory is not None)
        clock, is_on = lambda: self.now, lambda: self.is_on
        self.watch = MachineWatch(self.engine.whole, self.account, is_on, self.read, clock)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.running.__aexit__(*error)

    def read(self) -> MachineReading:
        if isinstance(self.reading, Exception):
            raise self.reading
        return self.reading

    async def look(self, times: int, reading: MachineReading | Exception | None = None) -> None:
        self.reading = reading or self.reading
        for _ in range(times):
            self.now += 2
            await self.watch.look()

    async def fill(self) -> int:
        """Fill the hot tier, and return its bytes."""
        for number in range(6):
            await collect(await self.engine.submit(request(f"f{number}", [number + 1] * 500)))
        return await self.hot()

    def is_told(self) -> bool:
        """Whether the report shows the account's pressure."""
        memory, pressure = self.engine.whole.memory, self.account.pressure
        told = memory and (memory.pressure, memory.ledger.machine)
        return told == (pressure.level, pressure.taken)

    async def hot(self) -> int:
        return await self.engine.ask(lambda instance: instance.cache.index.nbytes)


def play(scene: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), Place() as place:
            await scene(place)

    asyncio.run(run())


def test_the_hot_tier_gives_way_and_comes_back() -> None:
    async def scene(place: Place) -> None:
        before = await place.fill()
        await place.look(3)
        assert place.account.pressure is NO_PRESSURE
        await place.look(3, CRITICAL)
        assert await place.hot() <= place.account.floor < before / 2
        await until(place.is_told)
        await place.look(80, PLENTY)
        assert place.account.pressure.is_none
        assert await place.fill() == before

    play(scene)


def test_requests_take_turns_while_the_machine_is_very_short() -> None:
    """No text changes, and who is at work goes on."""

    async def scene(place: Place) -> None:
        prompts = [[number + 1, 7, 9] * 30 for number in range(4)]
        first = await place.engine.submit(request("r0", prompts[0], 300))
        begun = await some(first, 2)
        await place.look(2, CRITICAL)
        others = [
            await place.engine.submit(request(f"r{number}", prompts[number], 40))
            for number in (1, 2, 3)
        ]
        await until(lambda: place.engine.status.load.waiting == 3)
        together = 0

        async def look_on() -> None:
            nonlocal together
            while True:
                together = max(together, place.engine.status.load.running)
                await place.look(1)

        looking = asyncio.create_task(look_on())
        answers = await asyncio.gather(*map(collect, (first, *others)))
        looking.cancel()
        model = oracle().model
        answers[0] = begun + answers[0]
        assert [len(answer) for answer in answers] == [300, 40, 40, 40]
        assert all(is_greedy(model, p, a) for p, a in zip(prompts, answers, strict=True))
        assert together == 1
        used = await place.engine.ask(lambda instance: instance.watch and instance.watch.guard.used)
        assert used and used[Relief.PAUSE] and not used[Relief.PREEMPT]

    play(scene)


def test_who_does_not_fit_waits_and_is_not_taken_for_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watchdog, "PATIENCE_SECONDS", 0.02)

    async def scene(place: Place) -> None:
        await place.look(2, NOTHING_LEFT)
        generation = await place.engine.submit(request("a", [1, 2, 3] * 100, 6))
        answer = asyncio.create_task(collect(generation))
        for _ in range(20):
            await place.look(1)
            await asyncio.sleep(0.005)
        assert place.engine.status.load.waiting == 1 and not answer.done()
        await place.look(80, PLENTY)
        assert is_greedy(oracle().model, [1, 2, 3] * 100, await answer)
        assert "nothing has moved" not in caplog.text

    play(scene)


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("a new format")])
def test_a_reader_that_fails_is_no_pressure(error: Exception) -> None:
    async def scene(place: Place) -> None:
        await place.look(3, CRITICAL)
        assert place.account.pressure.is_critical
        await place.look(80, error)
        assert place.account.pressure.is_none

    play(scene)


def test_switched_off_it_ends_at_once() -> None:
    async def scene(place: Place) -> None:
        await place.look(3, CRITICAL)
        place.is_on = False
        await place.look(1)
        assert place.account.pressure is NO_PRESSURE

    play(scene)


def test_the_log_says_when_it_begins_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(place: Place) -> None:
        caplog.set_level("INFO")
        await place.fill()
        await place.look(10, NOTHING_LEFT)
        await place.look(80, PLENTY)
        lines = [line for line in caplog.messages if "the machine" in line]
        assert len(lines) == 3
        assert lines[0].startswith("the machine is short of memory (critical, 0 B available)")
        assert lines[0].endswith("less than its limit; new requests wait")
        assert "(warn, " in lines[1]
        assert lines[2] == "the machine has memory again"

    play(scene)


def test_the_watch_outlives_an_error_of_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx_server.engine.client.machine_watch.SECONDS", 0.001)

    async def scene() -> None:
        async with Place() as place:
            real, errors = place.account.change_pressure, [RuntimeError("planted")]

            def change(pressure: MemoryPressure) -> None:
                if errors:
                    raise errors.pop()
                real(pressure)

            monkeypatch.setattr(place.account, "change_pressure", change)
            place.reading = CRITICAL
            task = asyncio.create_task(place.watch.watch())
            await until(lambda: not errors and bool(place.account.pressure.level))
            task.cancel()

    asyncio.run(scene())
