"""The server's clock leaves jumps out, and nothing of the server asks another one."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from omlx_server import clock
from omlx_server.clock import Clock

PACKAGE = Path(clock.__file__).parent
# Links between machines notice by themselves that they were stopped (engine/cluster/link.py).
SEVERAL_MACHINES = "cluster"
OTHER_CLOCKS = re.compile(r"time\.monotonic|asyncio\.timeout\((?!None)|loop\.time\(|call_later")
HOURS = 4 * 3600.0


class Source:
    """A clock that jumps."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def ticking(scene: Callable[[], Awaitable[None]], own: Clock) -> None:
    async def play() -> None:
        task = asyncio.create_task(own.tick())
        await asyncio.sleep(0)
        await scene()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(play())


def test_a_jump_counts_for_a_little_and_time_goes_on_after_it() -> None:
    source = Source()
    own = Clock(source)

    async def scene() -> None:
        source.time += 2
        assert own.now() == 1002
        source.time += HOURS
        assert own.now() == 1004
        source.time += 2
        assert own.now() == 1006

    ticking(scene, own)


def test_a_clock_that_nobody_ticks_is_its_source() -> None:
    source = Source()
    own = Clock(source)
    ticking(_nothing, own)
    source.time += HOURS
    assert own.now() == 1000 + HOURS


async def _nothing() -> None:
    pass


def test_a_timeout_waits_for_the_clock_and_not_for_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop's timers of a Mac ring when it wakes up, though no time has passed."""
    source = Source()
    monkeypatch.setattr(clock, "now", source)

    async def scene() -> list[str]:
        heard = []
        with pytest.raises(TimeoutError):
            async with clock.timeout(0.02):
                await asyncio.sleep(0.1)  # as the loop has it, it is over
                heard.append("still there")
                source.time += 0.02
                await asyncio.sleep(60)
        return heard

    assert asyncio.run(scene()) == ["still there"]


def test_a_timeout_that_is_over_ends_at_the_first_wait() -> None:
    async def scene() -> None:
        async with clock.timeout(0):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(scene())


def test_an_alarm_that_was_stopped_does_not_ring() -> None:
    async def scene() -> list[str]:
        heard: list[str] = []
        alarm = clock.Alarm(asyncio.get_running_loop(), lambda: heard.append("it rang"))
        alarm.start(0.01)
        alarm.stop()
        assert not alarm.is_running
        await asyncio.sleep(0.03)
        alarm.start(0.01)
        await asyncio.sleep(0.03)
        return heard

    assert asyncio.run(scene()) == ["it rang"]


def test_nothing_of_the_server_asks_another_clock() -> None:
    folders = ("api", "engine", "wiring")
    files = [file for folder in folders for file in (PACKAGE / folder).rglob("*.py")]
    files.append(PACKAGE / "process" / "server.py")
    others = [
        str(file.relative_to(PACKAGE))
        for file in files
        if SEVERAL_MACHINES not in file.parts and OTHER_CLOCKS.search(file.read_text())
    ]
    assert others == []


def test_it_is_no_wall_clock() -> None:
    before = time.monotonic()
    assert before <= Clock().now() <= time.monotonic()
