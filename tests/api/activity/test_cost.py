"""What it costs to tell what a server is doing: counted in questions to the mlx thread."""

import asyncio
from itertools import count

import pytest

from omlx_server.api.activity import live
from omlx_server.api.activity.activity import Activity
from omlx_server.api.activity.live import MOST_LISTENERS, Broadcast
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.messages import EngineCall, Inbound, StartJob
from omlx_server.errors import QueueFull, Unavailable
from tests.api.moments import Open, Place, opened, play

__all__ = ["opened"]


class Asked:
    """Counts the questions to the mlx thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        put = AsyncEngine.put

        def counted(engine: AsyncEngine, message: Inbound) -> None:
            self.times += isinstance(message, EngineCall | StartJob)
            put(engine, message)

        monkeypatch.setattr(AsyncEngine, "put", counted)


def activity_of(place: Place) -> Activity:
    found: Activity = place.app.state.context.activity
    return found


async def ask_on(place: Place, enough: asyncio.Event) -> None:
    """Have an answer written, and then another one."""
    while not enough.is_set():
        await place.ask(max_tokens=1000)


async def listen(activity: Activity, events: int) -> list[bytes]:
    return [event async for event in activity.live.events(events)]


def test_nothing_is_asked_while_nobody_listens(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)

    async def scene() -> None:
        async with opened() as place:
            await place.ready()
            asked.times = 0  # those of the load
            answer = await place.ask(max_tokens=400)
            assert answer.status_code == 200 and asked.times == 0
            assert activity_of(place).live.listeners == 0

    play(scene())


def test_all_who_listen_and_ask_make_one_question_a_second(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)

    async def scene() -> None:
        async with opened() as place:
            await place.ready()
            activity = activity_of(place)
            enough = asyncio.Event()
            busy = [asyncio.create_task(ask_on(place, enough)) for _ in range(2)]
            while not (await activity.requests())["at_work"]:
                await asyncio.sleep(0.01)
            loop, before = asyncio.get_running_loop(), asked.times
            began = loop.time()
            listeners = [asyncio.create_task(listen(activity, 3)) for _ in range(10)]
            for _ in range(40):
                await activity.requests()
                await asyncio.sleep(0.02)
            told = await asyncio.gather(*listeners)
            seconds = loop.time() - began
            assert all(events == told[0] for events in told)
            assert 1 <= asked.times - before <= seconds + 2
            before = asked.times
            await asyncio.sleep(1.2)
            assert asked.times == before and activity.live.listeners == 0
            enough.set()
            await asyncio.gather(*busy)

    play(scene())


def test_an_idle_server_is_not_asked_though_somebody_listens(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)

    async def scene() -> None:
        async with opened() as place:
            await place.ready()
            asked.times = 0
            assert len(await listen(activity_of(place), 2)) == 2
            assert asked.times == 0

    play(scene())


def test_a_slow_listener_loses_the_oldest_events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.001)
    made = count()

    async def make(first: bool) -> bytes:
        return b"%d" % next(made)

    async def scene() -> None:
        broadcast = Broadcast(make)
        events = broadcast.events()
        assert await anext(events) == b"0"
        await asyncio.sleep(0.2)
        late = [int(await anext(events)) for _ in range(10)]
        assert late == list(range(late[0], late[0] + 10)) and late[0] > 1
        await events.aclose()
        assert broadcast.listeners == 0

    asyncio.run(scene())


def test_a_failure_lets_no_listener_wait_for_ever() -> None:
    async def make(first: bool) -> bytes:
        if not first:
            raise ValueError("a fault")
        return b"x"

    async def scene() -> None:
        broadcast = Broadcast(make)
        with pytest.raises(ValueError):
            task = None
            async for event in broadcast.events():
                assert event == b"x"
                task = task or broadcast._sender
            assert task is not None
            await task
        assert [event async for event in broadcast.events(1)] == [b"x"]

    asyncio.run(scene())


def test_listeners_are_bounded_and_end_with_the_server() -> None:
    async def make(first: bool) -> bytes:
        return b"x"

    async def scene() -> None:
        broadcast = Broadcast(make)
        all_of_them = [broadcast.events() for _ in range(MOST_LISTENERS)]
        for events in all_of_them:
            assert await anext(events) == b"x"
        with pytest.raises(QueueFull):
            await anext(broadcast.events())
        broadcast.close()
        for events in all_of_them:
            assert [event async for event in events] in ([], [b"x"])
        with pytest.raises(Unavailable):
            await anext(broadcast.events())

    asyncio.run(scene())
