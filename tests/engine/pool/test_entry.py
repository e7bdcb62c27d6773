"""A model that is waited for: all have it at once, and who leaves takes nothing along."""

import asyncio

import pytest

from omlx_server.engine.pool import entry as entries
from omlx_server.engine.pool.entry import ModelRequest, Phase, PoolEntry
from omlx_server.errors import QueueFull, Unavailable
from tests.engine.place import Place, error_of, play, until


def test_waiters_share_one_load() -> None:
    async def scene() -> None:
        place = Place()
        leases = await asyncio.gather(*(place.take("a") for _ in range(20)))
        assert place.shop.done == ["+a"]
        assert len({id(lease.model) for lease in leases}) == 1
        assert place.users("a") == 20
        for lease in leases:
            place.give(lease)
            lease.release()  # twice is once
        await place.quiet("a")

    play(scene)


def test_patience_ends_and_the_load_goes_on() -> None:
    async def scene() -> None:
        place = Place(patience=0.03)
        place.shop.gate.clear()
        with pytest.raises(Unavailable, match="still being loaded") as raised:
            await place.use("a")
        assert (raised.value.retry_after or 0) > 0
        whole = asyncio.create_task(place.pool.load(place.shop.wanted("a")))
        await asyncio.sleep(0.06)
        assert not whole.done()  # it waits for as long as it takes
        place.shop.gate.set()
        await whole
        await place.use("a")
        assert place.shop.done == ["+a"]
        await place.quiet("a")

    play(scene)


def test_not_everybody_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_MAX_WAITERS", 3)

    async def scene() -> None:
        place = Place()
        place.shop.gate.clear()
        tasks = [place.soon("a") for _ in range(3)]
        await asyncio.sleep(0.01)
        with pytest.raises(QueueFull):
            await place.use("a")
        place.shop.gate.set()
        await asyncio.gather(*tasks)
        await place.quiet("a")

    play(scene)


@pytest.mark.parametrize("moment", ["before", "as it is there"])
def test_whoever_leaves_while_waiting_takes_nothing_along(moment: str) -> None:
    async def scene() -> None:
        place = Place()
        place.shop.gate.clear()
        tasks = [place.soon("a") for _ in range(4)]
        await until(lambda: place.phase("a") is Phase.LOADING)
        if moment == "before":
            tasks[1].cancel()
            await asyncio.wait({tasks[1]})
            place.shop.gate.set()
        else:
            place.shop.gate.set()
            while place.users("a") == 0:
                await asyncio.sleep(0)
            assert not tasks[1].done()
            tasks[1].cancel()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [False, True, False, False]
        await place.quiet("a")

    play(scene)


def test_who_needs_the_room_is_told_of_everybody_who_goes() -> None:
    async def scene() -> None:
        released = asyncio.Event()
        entry = PoolEntry[str](ModelRequest("a", 1), released)
        waiting = asyncio.create_task(error_of(entry.wait(entry.add_waiter(), None)))
        await asyncio.sleep(0)
        waiting.cancel()
        await waiting
        assert released.is_set() and not entry.is_wanted
        released.clear()
        entry.model = "a"
        lease = entry.lease()
        assert not released.is_set() and entry.users == 1
        lease.release()
        assert released.is_set() and entry.users == 0

    play(scene)


@pytest.mark.parametrize("broken", [False, True])
def test_one_that_was_to_go_is_had_again_unless_it_is_broken(broken: bool) -> None:
    async def scene() -> None:
        entry = PoolEntry[str](ModelRequest("a", 1), asyncio.Event())
        entry.model, entry.has_failed, entry.phase = "a", broken, Phase.UNLOADING
        waiter = entry.add_waiter()
        entry.reopen()
        assert (entry.phase is Phase.LOADED, waiter.done()) == (not broken, not broken)
        entry.model = None
        entry.phase = Phase.ABSENT
        entry.reopen()
        assert entry.phase is Phase.ABSENT, "nothing is left of it"

    play(scene)
