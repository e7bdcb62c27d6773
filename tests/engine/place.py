"""A pool of models that are no models, and how a test plays with it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from omlx_server.engine.pool.entry import Lease, Phase, Rules
from omlx_server.engine.pool.pool import ModelPool
from omlx_server.errors import OmlxError
from tests.engine.workshop import Made, Workshop

ONE = Rules(max_loaded=1)
TWO = Rules(max_loaded=2)


class Place:
    """A pool and its workshop."""

    def __init__(self, rules: Rules = ONE, patience: float = 5, **sizes: int) -> None:
        self.shop = Workshop(rules, sizes)
        self.pool = ModelPool[Made](self.shop, lambda: self.shop.rules, patience)

    async def take(self, key: str) -> Lease[Made]:
        lease = await self.pool.acquire(self.shop.wanted(key))
        assert lease.model.alive and lease.model.key == key
        lease.model.held += 1
        return lease

    def give(self, lease: Lease[Made]) -> None:
        lease.model.held -= 1
        lease.release()

    async def use(self, key: str, seconds: float = 0.0) -> None:
        lease = await self.take(key)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.give(lease)

    def soon(self, key: str, seconds: float = 0.0) -> asyncio.Task[None]:
        return asyncio.create_task(self.use(key, seconds))

    def users(self, key: str) -> int:
        entry = self.pool.entry(key)
        return entry.users if entry is not None else 0

    def phase(self, key: str) -> Phase:
        entry = self.pool.entry(key)
        return entry.phase if entry is not None else Phase.ABSENT

    async def quiet(self, keys: str) -> None:
        """Nothing is under way any more: nobody has a lease, nothing is lost."""
        entries = [e for e in map(self.pool.entry, keys) if e is not None]
        await until(lambda: not any(e.load_task or e.unload_task or e.waiters for e in entries))
        async with asyncio.timeout(5), self.pool._turn:
            pass
        assert self.shop.wrong == []
        assert [e.users for e in entries] == [0] * len(entries)
        assert {id(made) for made in self.pool.loaded()} == {id(m) for m in self.shop.there}
        assert all((e.model is not None) == (e.phase is Phase.LOADED) for e in entries)


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(20):
            await scene()

    asyncio.run(timed())


async def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


async def error_of(asked: Awaitable[object]) -> BaseException | None:
    try:
        await asked
    except (OmlxError, OSError, asyncio.CancelledError) as error:
        return error
    return None
