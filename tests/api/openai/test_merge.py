"""Several streams as one: their order, how far they go ahead, and their end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from omlx_server.api.openai.completions import merge_streams


async def counted(name: str, made: list[str], stop: int) -> AsyncIterator[str]:
    for number in range(stop):
        made.append(f"{name}{number}")
        yield made[-1]
        await asyncio.sleep(0)


def test_all_items_come_each_stream_in_its_order() -> None:
    async def scenario() -> None:
        streams = [counted(name, [], 200) for name in "abc"]
        items = [item async for item in merge_streams(streams, 2)]
        for name in "abc":
            of_one = [item for item in items if item[0] == name]
            assert of_one == [f"{name}{n}" for n in range(200)]

    asyncio.run(scenario())


def test_who_reads_slowly_holds_the_streams_back_and_may_leave() -> None:
    async def scenario() -> None:
        made: list[str] = []
        items = merge_streams([counted(name, made, 10_000) for name in "ab"], 2)
        await anext(items)
        for _ in range(500):
            await asyncio.sleep(0)
        ahead = len(made)
        await items.aclose()
        assert 60 < ahead < 70
        assert asyncio.all_tasks() == {asyncio.current_task()} and len(made) == ahead

    asyncio.run(scenario())


def test_what_one_raises_is_raised_though_the_reader_is_behind() -> None:
    async def broken(made: list[str]) -> AsyncIterator[str]:
        async for item in counted("x", made, 30):
            yield item
        raise ValueError("broken")

    async def scenario() -> None:
        items = merge_streams([broken([]), counted("y", [], 10_000)], 2)
        with pytest.raises(ValueError, match="broken"):
            async for _ in items:
                pass

    asyncio.run(scenario())
