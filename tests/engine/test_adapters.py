"""Adapters of a model in an engine: loaded when they are first asked for, once, and let go when
others need their place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omlx_server.clock import now
from omlx_server.core.adapters import Adapter
from omlx_server.core.memory.guard import Caches
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.memory_admission import HEADROOM
from omlx_server.engine.client import model_client
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.memory.adapters import AdapterLimits
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import AdapterUnusable, Unavailable
from omlx_server.models.adapters.files import read_adapter
from tests.adapters import fuse, save_adapter, wear
from tests.compute.oracle import greedy
from tests.engine.running import collect, some
from tests.engine.several import Several, play, several
from tests.tiny_models import make_model, save_tiny

PROMPT = [(7 * i) % 190 + 1 for i in range(40)]
COUNT = 12


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters")
    save_tiny(path / "llama", "llama")
    model, _ = make_model("llama")
    for seed in range(3):
        save_adapter(path / f"a{seed}", model, seed=seed, rank=4 * (1 + seed % 2))
    wide, _ = make_model("llama", hidden_size=32)
    save_adapter(path / "other", wide)
    return path


@pytest.fixture(scope="module")
def adapters(directory: Path) -> list[Adapter]:
    return [read_adapter(directory / f"a{seed}", f"a{seed}") for seed in range(3)]


@asynccontextmanager
async def house_of(directory: Path, count: int = 8) -> AsyncIterator[tuple[Several, Any]]:
    async with several(directory) as house:
        client = await house.load("llama")
        await limit(client, AdapterLimits(count))
        yield house, client


async def limit(client: GeneratorClient, limits: AdapterLimits) -> None:
    def act(instance: ModelInstance) -> None:
        instance.adapters.limits = limits

    await client.ask(act)


def request(name: str, adapter: Adapter | None, count: int = COUNT) -> Request:
    sampling = SamplingParams(max_tokens=count, temperature=0)
    return Request(RequestId(name), tuple(PROMPT), sampling, arrived=now(), adapter=adapter)


async def ask(client: GeneratorClient, name: str, adapter: Adapter | None) -> list[int]:
    return await collect(await client.submit(request(name, adapter)))


def said(adapter: Adapter | None, count: int = COUNT) -> list[int]:
    model, _ = make_model("llama")
    return greedy(fuse(wear(model, adapter.path)) if adapter else model, PROMPT, count)


async def hold(client: GeneratorClient, adapter: Adapter) -> None:
    async with client.keeping_adapter(adapter):
        pass


async def loaded(client: GeneratorClient) -> list[str]:
    return await client.ask(lambda own: [one.name for one in own.adapters.weights.loaded])


def test_each_is_loaded_once_and_counted_as_weights(
    directory: Path, adapters: list[Adapter]
) -> None:
    async def scene() -> None:
        async with house_of(directory) as (house, client):
            before = house.account.weights
            wanted = [None, *adapters, *adapters]
            found = await asyncio.gather(
                *(ask(client, f"r{i}", adapter) for i, adapter in enumerate(wanted))
            )
            assert list(found) == [said(adapter) for adapter in wanted]
            assert sorted(await loaded(client)) == ["a0", "a1", "a2"]
            nbytes = await client.ask(lambda own: own.adapters.weights.nbytes)
            assert house.account.weights == before + nbytes > before
            assert house.account.set_aside == 0
            planner = await client.ask(lambda own: own.watch.planner)
            assert planner.adapter_token_bytes == 4 * 64 + 4 * 8 + 12 * 64

    play(scene())


def test_the_one_longest_unused_makes_room_but_none_in_use(
    directory: Path, adapters: list[Adapter]
) -> None:
    async def scene() -> None:
        async with house_of(directory, 2) as (house, client):
            weights = house.account.weights
            long = await client.submit(request("long", adapters[0], 300))
            assert (await some(long, 3))[:3] == said(adapters[0])[:3]
            for turn, number in enumerate((1, 2, 1)):
                assert await ask(client, f"r{turn}", adapters[number]) == said(adapters[number])
                assert await loaded(client) == ["a0", f"a{number}"]
            long.close()
            assert await ask(client, "last", adapters[2]) == said(adapters[2])
            assert await loaded(client) == ["a1", "a2"]
            await limit(client, AdapterLimits(1))
            assert await ask(client, "one", adapters[0]) == said(adapters[0])
            assert await loaded(client) == ["a0"]
            nbytes = await client.ask(lambda own: own.adapters.weights.nbytes)
            assert house.account.weights == weights + nbytes

    play(scene())


def test_who_finds_all_places_taken_waits_and_is_told_at_last(
    directory: Path, adapters: list[Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with house_of(directory, 1) as (_, client):
            long = await client.submit(request("long", adapters[0], 2000))
            waits = asyncio.create_task(ask(client, "waits", adapters[1]))
            await some(long, 5)
            assert not waits.done()
            long.close()
            assert await waits == said(adapters[1])
            monkeypatch.setattr(model_client, "_PATIENCE_SECONDS", 0.05)
            long = await client.submit(request("again", adapters[1], 2000))
            with pytest.raises(Unavailable, match="there was no place for the adapter"):
                await ask(client, "told", adapters[0])
            long.close()
            assert await ask(client, "now", adapters[0]) == said(adapters[0])

    play(scene())


def test_one_that_can_not_be_used_is_refused_and_leaves_nothing_behind(
    directory: Path, adapters: list[Adapter]
) -> None:
    async def scene() -> None:
        async with house_of(directory) as (house, client):
            weights = house.account.weights
            other = read_adapter(directory / "other", "other")
            with pytest.raises(AdapterUnusable, match=r"has \(32, 4\)"):
                await ask(client, "unfit", other)
            await limit(client, AdapterLimits(8, 2 * adapters[0].nbytes - 1))
            with pytest.raises(AdapterUnusable, match=r"and adapters\.max_bytes is"):
                await ask(client, "large", adapters[0])
            assert house.account.weights == weights
            assert house.account.set_aside == 0
            assert await ask(client, "plain", None) == said(None)

    play(scene())


def test_who_gives_up_while_one_is_loaded_leaves_it_to_others(
    directory: Path, adapters: list[Adapter]
) -> None:
    async def scene() -> None:
        async with house_of(directory) as (house, client):
            asked = [asyncio.create_task(ask(client, f"r{i}", adapters[0])) for i in range(3)]
            await asyncio.sleep(0.002)
            asked[0].cancel()
            assert await asyncio.gather(*asked[1:]) == [said(adapters[0])] * 2
            async with asyncio.TaskGroup() as many:  # more than there may be jobs
                for _ in range(140):
                    many.create_task(hold(client, adapters[1]))
            assert await loaded(client) == ["a0", "a1"]
            assert house.account.set_aside == 0
            await client.ask(lambda own: own.check_invariants())

    play(scene())


def test_one_that_nothing_uses_makes_room_for_requests_and_none_takes_that_of_others(
    directory: Path, adapters: list[Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with house_of(directory) as (house, client):
            assert await ask(client, "adapted", adapters[0]) == said(adapters[0])
            await client.ask(lambda own: tighten(own, house.account))
            plain = await client.submit(request("plain", None, 100))
            assert await loaded(client) == []
            monkeypatch.setattr(model_client, "_PATIENCE_SECONDS", 0.0)
            with pytest.raises(Unavailable, match="there was no place for the adapter"):
                await ask(client, "told", adapters[0])
            assert await collect(plain) == said(None, 100)

    play(scene())


def tighten(instance: ModelInstance, account: MemoryAccount) -> None:
    """Have the memory fit one request and a short answer, but hardly more."""
    assert instance.watch is not None
    guard, weights = instance.watch.guard, instance.weight_bytes
    guard.ledger = replace(guard.ledger, weights=weights)
    needed = next(
        limit
        for limit in range(weights, weights + (64 << 20), 8 << 10)
        if guard.under(limit, account.queue).ever_fits(Caches((len(PROMPT) + HEADROOM,)), 1)
    )
    account.limit = needed + (8 << 10)
    guard.change(account.limit, account.queue)


def test_a_text_is_scored_by_the_model_with_its_adapter(
    directory: Path, adapters: list[Adapter]
) -> None:
    async def scene() -> None:
        async with house_of(directory) as (house, client):
            for adapter in (None, adapters[0]):
                found = await client.score(PROMPT, 1, adapter)
                answer = [scored.top[0][0] for scored in found][-1]
                model = house.oracle("llama", PROMPT[:-1], 1)[0]
                if adapter is None:
                    assert answer == model
                else:
                    fused, _ = make_model("llama")
                    assert answer == greedy(fuse(wear(fused, adapter.path)), PROMPT[:-1], 1)[0]

    play(scene())
