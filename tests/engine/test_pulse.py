"""The watchdog tells a long step from a thread that hangs."""

import asyncio
import threading
from collections.abc import Callable

import mlx.core as mx
import pytest

from omlx_server import clock
from omlx_server.compute.hardware import device
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.pulse import Pulse


class Cpu:
    """CPU time as it is set."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def cpu() -> Cpu:
    return Cpu()


def patient(cpu: Cpu) -> Pulse:
    pulse = Pulse(cpu)
    pulse.patience = 30
    return pulse


def looks(pulse: Pulse, cpu: Cpu, share: float, until: float, every: float = 10.0) -> list[float]:
    """The ages at which it was alive, of a step that burns this share of a core and has begun,
    with a heartbeat, at 0."""
    found, now = [], 0.0
    while now < until:
        if pulse.alive(0.0, now):
            found.append(now)
        now += every
        cpu.seconds += share * every
    return found


@pytest.mark.parametrize("share", [1.0, 8.0, 0.2])
def test_a_step_that_computes_may_last_ten_minutes_and_no_longer(cpu: Cpu, share: float) -> None:
    alive = looks(patient(cpu), cpu, share, 1000)
    assert alive == [10.0 * n for n in range(60)]


@pytest.mark.parametrize("share", [0.0, 0.02])
def test_a_thread_that_hangs_is_found_after_its_patience(cpu: Cpu, share: float) -> None:
    cpu.seconds = 5000  # before
    assert looks(patient(cpu), cpu, share, 1000) == [0, 10, 20]


def test_one_that_hangs_after_a_long_step_is_found(cpu: Cpu) -> None:
    pulse = patient(cpu)
    assert len(looks(pulse, cpu, 1, 100)) == 10
    cpu.seconds += 1
    assert [pulse.alive(0.0, 100.0 + age) for age in (10, 20)] == [True, False]
    assert pulse.alive(120.0, 125.0), "and when it goes on all is well"


def test_looks_in_quick_succession_are_one(cpu: Cpu) -> None:
    """What happens to be burnt in a millisecond says nothing."""
    pulse = patient(cpu)
    looks(pulse, cpu, 1, 50)
    assert all(pulse.alive(0.0, 45 + n / 1000) for n in range(100))
    assert not pulse.alive(0.0, 1000)


def test_after_an_hour_of_rest_a_long_step_is_none_that_hangs(cpu: Cpu) -> None:
    """Nobody has looked meanwhile; only what was burnt since the step began counts."""
    pulse = patient(cpu)
    assert pulse.alive(0.0, 1.0)
    cpu.seconds += 35
    assert pulse.alive(3600.0, 3635.0)


@pytest.mark.parametrize(("is_cpu", "patience"), [(True, 30), (False, 120)])
def test_a_gpu_computes_without_the_cpu(
    is_cpu: bool, patience: float, cpu: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "is_cpu", lambda: is_cpu)
    pulse = Pulse(cpu)
    assert pulse.alive(0.0, patience - 1)
    assert not pulse.alive(0.0, patience + 10)


# --- On a real thread ----------------------------------------------------------------------------


def compute() -> None:
    """One long evaluation after the other, without a heartbeat."""
    a = mx.random.normal((384, 384))
    while not release.is_set():
        mx.eval(a @ a)


def verdicts(act: Callable[[], object]) -> list[bool]:
    """What it says of a mlx thread that does this and nothing else, from the first second on to the
    second."""

    async def scene() -> list[bool]:
        engine = AsyncEngine(lambda problem: None)
        engine.pulse.patience, engine.pulse.apart = 0.3, 0.1
        await engine.start()
        step = asyncio.create_task(engine.call(act))
        found = []
        try:
            for _ in range(40):
                await asyncio.sleep(0.05)
                found.append(engine.alive(clock.now()))
            assert not step.done()
            release.set()
            await step
            while not engine.alive(clock.now()):
                await asyncio.sleep(0.01)
        finally:  # else its thread would be waited for
            release.set()
            await engine.stop()
        return found[20:]

    release.clear()
    return asyncio.run(asyncio.wait_for(scene(), 60))


release = threading.Event()


def test_a_long_step_is_told_from_a_thread_that_hangs() -> None:
    assert verdicts(compute).count(False) <= 10  # others use the machine, too
    assert not any(verdicts(lambda: release.wait(60)))
