"""Images on the way to a model in an engine: which are unseen, jobs that see them, their memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from omlx_server.clock import now
from omlx_server.compute.hardware import device
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler import watchdog
from omlx_server.core.scheduler.watchdog import Stalls
from omlx_server.engine import model_jobs
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import BadRequest, NoMemory, Unavailable
from tests.compute.vision.prompts import (
    LARGE,
    Told,
    answer,
    picture,
    repainted,
    seeing,
    vision_of,
    words,
)
from tests.compute.vision.recorded import save
from tests.engine.running import collect, until
from tests.engine.several import MB, Several, play, several
from tests.tiny_models import save_tiny

KIND = "qwen3_vl"
COUNT = 6


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("seeing")
    (path / KIND).mkdir()
    save(KIND, path / KIND)
    save_tiny(path / "llama", "llama")
    return path


@asynccontextmanager
async def house_of(directory: Path, **settings: Any) -> AsyncIterator[tuple[Several, Any]]:
    async with several(directory, **settings) as house:
        yield house, await house.load(KIND)


@asynccontextmanager
async def small_house_of(directory: Path) -> AsyncIterator[tuple[Several, Any, int]]:
    """With a limit of 8 MB, and the most bytes that can be set aside below it."""
    async with house_of(directory, memory={"limit": 8 * MB}) as (house, client):
        yield house, client, await house.engine.call(lambda: house.account.largest_job())


def story(seed: int = 0) -> Told:
    first, second = picture(KIND, seed + 1), picture(KIND, seed + 2, LARGE)
    return Told(KIND).then(words(seed, 30), first, words(1, 5), second, words(2, 5), first, [7])


def request(name: str, told: Told, count: int = COUNT) -> Request:
    sampling = SamplingParams(max_tokens=count, temperature=0)
    id, arrived = RequestId(name), now()
    return Request(id, told.tokens, sampling, arrived=arrived, images=told.images)


async def see(client: GeneratorClient, told: Told) -> int:
    """As the API does it. Returns how many images were unseen."""
    unseen = await client.images_to_compute(told.tokens, b"", told.images)
    for image in unseen:
        assert image.pixels is not None
        async with client.setting_aside(image.nbytes):
            pixels = await asyncio.to_thread(image.pixels)
        await client.compute_image(image, pixels)  # type: ignore[arg-type]
    return len(unseen)


async def ask(client: GeneratorClient, name: str, told: Told) -> list[int]:
    return await collect(await client.submit(request(name, told)))


def runs(instance: ModelInstance) -> int:
    return vision_of(instance.runner.loaded).runs


def features(instance: ModelInstance) -> int:
    return instance.features.nbytes


def test_an_image_is_unseen_until_its_features_or_its_tokens_are_kept(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory) as (_, client):
            told = story()
            assert await see(client, told) == 2  # of three, two are the same
            assert await client.images_to_compute(told.tokens, b"", told.images) == ()
            assert await ask(client, "a", told) == answer(seeing(KIND), told, COUNT)
            assert await client.ask(runs) == 2
            await client.ask(lambda instance: instance.features.forget())
            assert await client.images_to_compute(told.tokens, b"", told.images) == ()
            assert len(await client.images_to_compute(told.tokens, b"other", told.images)) == 2

    play(scene())


def test_two_who_bring_the_same_new_image_have_the_tower_run_once(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory) as (_, client):
            one, other = story(), Told(KIND).then(words(3, 4), picture(KIND, 1), [8, 9])
            unseen = await asyncio.gather(see(client, one), see(client, other))
            assert list(unseen) == [2, 1]
            assert await client.ask(runs) == 2
            found = await asyncio.gather(ask(client, "a", one), ask(client, "b", other))
            assert list(found) == [answer(seeing(KIND), told, COUNT) for told in (one, other)]
            assert await client.ask(runs) == 2

    play(scene())


def test_who_gives_up_seeing_leaves_the_image_to_others(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory) as (house, client):
            told = Told(KIND).then(words(3, 4), picture(KIND, 1, (1, 40, 40)), [8, 9])
            waits = [asyncio.create_task(see(client, told)) for _ in range(3)]
            await asyncio.sleep(0)
            waits[0].cancel()
            assert list(await asyncio.gather(*waits[1:])) == [1, 1]
            assert await client.images_to_compute(told.tokens, b"", told.images) == ()
            assert house.account.set_aside == 0

    play(scene())


def test_features_are_on_the_account_until_the_model_leaves(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory) as (house, client):
            told = story()
            before = await house.engine.call(lambda: house.account.held().live)
            active = await house.engine.call(device.active_memory)
            await see(client, told)
            kept = await client.ask(features)
            sizes = [vision_of(seeing(KIND)).tower.tokens(image.grid) for image in told.images[:2]]
            assert kept == sum(sizes) * 64 * 4 * (1 + 2)  # with two layers of deepstack
            assert await house.engine.call(lambda: house.account.held().live) == before + kept
            assert await house.engine.call(device.active_memory) - active < kept + (1 << 15)
            await client.ask(ModelInstance.reset_cache)
            assert await client.ask(features) == 0
            await see(client, told)
            await client.unload()
            assert await house.engine.call(lambda: house.account.held().live) == 0

    play(scene())


def test_a_prompt_is_answered_whose_images_nobody_has_seen(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory) as (_, client):
            told = story()
            assert await ask(client, "a", told) == answer(seeing(KIND), told, COUNT)
            assert await client.ask(runs) == 2

    play(scene())


def test_features_that_no_prompt_needs_have_a_bound(directory: Path) -> None:
    """Their share of the memory; but those of a prompt that waits stay."""

    async def scene() -> None:
        async with house_of(directory, memory={"limit": 8 * MB}) as (_, client):
            for number in range(40):
                shown = picture(KIND, number, (1, 12, 12))
                told = Told(KIND).then([number + 1], shown, [8, 9])
                await see(client, told)
                assert await client.ask(features) <= 8 * MB // 32
            assert await client.ask(features) > 8 * MB // 64
            assert await client.ask(runs) == 40
            assert await client.images_to_compute(told.tokens, b"", told.images) == ()

    play(scene())


def test_features_stay_until_the_request_for_them_is_queued(directory: Path) -> None:
    """A prompt may have more images than are kept for nobody: the tower runs once for each."""

    async def scene() -> None:
        async with house_of(directory, memory={"limit": 8 * MB}) as (_, client):
            shown = [picture(KIND, number, (1, 12, 12)) for number in range(16)]
            told = Told(KIND).then([1], *shown, [8, 9])
            async with client.keeping_images(told.images):
                assert await see(client, told) == 16
                assert await client.ask(features) > 8 * MB // 32
                generation = await client.submit(request("a", told))
            assert await collect(generation) == answer(seeing(KIND), told, COUNT)
            assert await client.ask(runs) == 16
            assert await client.ask(features) <= 8 * MB // 32

    play(scene())


def test_who_expects_features_hinders_nobody(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory, memory={"limit": 8 * MB}) as (house, client):
            for number in range(8):
                await ask(client, f"{number}", Told(KIND).then(words(number, 400)))
            told = story()
            async with client.keeping_images(told.images):
                await see(client, told)
                most = await house.engine.call(lambda: house.account.largest_job())
                async with asyncio.timeout(30), client.setting_aside(most):
                    assert await client.ask(features) == 0
            task = asyncio.create_task(client.keeping_images(told.images).__aenter__())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not await client.ask(lambda instance: instance.features._expected)

    play(scene())


def test_a_job_finds_room_where_features_were(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory, memory={"limit": 8 * MB}) as (house, client):
            for number in range(8):
                await ask(client, f"{number}", Told(KIND).then(words(number, 400)))
            await see(client, story())
            assert await client.ask(features) > 0
            most = await house.engine.call(lambda: house.account.largest_job())
            async with asyncio.timeout(30), client.setting_aside(most):
                assert await client.ask(features) == 0

    play(scene())


# -- memory that is set aside --------------------------------------------------------------


def aside(house: Several) -> Callable[[], int]:
    return lambda: house.account.set_aside


def test_memory_is_set_aside_while_images_are_prepared(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory) as (house, client):
            async with client.setting_aside(5000):
                assert await house.engine.call(aside(house)) == 5000
            assert await house.engine.call(aside(house)) == 0
            with pytest.raises(ZeroDivisionError):
                async with client.setting_aside(5000):
                    raise ZeroDivisionError
            assert await house.engine.call(aside(house)) == 0

    play(scene())


def test_who_waits_for_memory_gets_it_when_others_have_given_it_back(directory: Path) -> None:
    async def scene() -> None:
        async with small_house_of(directory) as (house, client, most):
            entered = list[str]()

            async def hold(name: str) -> None:
                async with client.setting_aside(most):
                    entered.append(name)

            async with client.setting_aside(most // 2):
                waits = [asyncio.create_task(hold(name)) for name in "ab"]
                await until(lambda: len(house.account.waiting) == 2)
                assert house.account.awaited_bytes == 0  # texts that come meanwhile go first
                assert not entered
                waits[0].cancel()
                await until(lambda: len(house.account.waiting) == 1)
            await waits[1]
            assert entered == ["b"]
            assert await house.engine.call(aside(house)) == 0

    play(scene())


def test_what_would_never_fit_is_refused(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory, memory={"limit": 8 * MB}) as (house, client):
            with pytest.raises(NoMemory):
                async with client.setting_aside(9 * MB):
                    raise AssertionError
            told = Told(KIND).then([1], picture(KIND, 1, (1, 160, 160)), [8, 9])
            with pytest.raises(NoMemory):
                await see(client, told)
            assert await house.engine.call(aside(house)) == 0

    play(scene())


def test_a_claim_that_comes_after_its_release_holds_nothing(directory: Path) -> None:
    """Whoever gives up leaves the context before the thread has heard of it."""

    async def scene() -> None:
        async with house_of(directory) as (house, client):
            for slices in range(4):
                task = asyncio.create_task(client.setting_aside(5000).__aenter__())
                for _ in range(slices):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await until(lambda: house.account.set_aside == 0)

    play(scene())


def test_a_model_for_text_is_asked_in_vain(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory) as house:
            client, told = await house.load("llama"), story()
            with pytest.raises(BadRequest, match="sees no images"):
                await client.images_to_compute(told.tokens, b"", told.images)
            with pytest.raises(BadRequest, match="sees no images"):
                await client.compute_image(told.images[0], told.shown[0].pixels)

    play(scene())


def test_pixels_of_another_image_are_refused(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory) as (_, client):
            told = story()
            with pytest.raises(ValueError, match="are not those of a grid"):
                await client.compute_image(told.images[0], told.shown[1].pixels)
            assert await client.ask(runs) == 0

    play(scene())


def test_two_clients_with_images_that_differ_in_one_pixel_get_their_own(directory: Path) -> None:
    async def scene() -> None:
        async with house_of(directory) as (_, client):
            first = picture(KIND, 1)
            pair = [
                Told(KIND).then(words(1, 20), shown, words(2, 9))
                for shown in (first, repainted(first))
            ]
            for number, told in enumerate(pair):
                assert await see(client, told) == 1
                found = await ask(client, str(number), told)
                assert found == answer(seeing(KIND), told, COUNT)

    play(scene())


def test_images_are_seen_beside_streams(directory: Path) -> None:
    """Rows of text and of images, with images that come meanwhile."""

    async def turn(client: GeneratorClient, number: int) -> None:
        told = story(number) if number % 2 else Told(KIND).then(words(number, 25))
        await see(client, told)
        assert await ask(client, f"{number}", told) == answer(seeing(KIND), told, COUNT)

    async def scene() -> None:
        async with house_of(directory) as (house, client):
            await asyncio.gather(*map(partial(turn, client), range(8)))
            assert await client.ask(runs) == 2 * 4
            counted = house.engine.counted[KIND].images
            assert counted.computed == 2 * 4 and counted.seconds > 0

    play(scene())


# -- beside texts --------------------------------------------------------------------------


def test_images_that_wait_for_memory_keep_no_text_waiting(directory: Path) -> None:
    async def scene() -> None:
        async with small_house_of(directory) as (house, client, most):

            async def hold() -> None:
                async with client.setting_aside(most):
                    pass

            async with client.setting_aside(most // 2):
                waits = [asyncio.create_task(hold()) for _ in range(8)]
                await until(lambda: len(house.account.waiting) == 8)
                told = Told(KIND).then(words(1, 40))
                async with asyncio.timeout(30):
                    assert await ask(client, "a", told) == answer(seeing(KIND), told, COUNT)
                assert len(house.account.waiting) == 8
            await asyncio.gather(*waits)

    play(scene())


def test_an_image_goes_behind_a_text_that_waits_for_memory(directory: Path) -> None:
    """Images one after the other, each beside the next, would else leave none to it."""

    async def scene() -> None:
        async with small_house_of(directory) as (house, client, most):
            told = Told(KIND).then(words(1, 2000))
            async with client.setting_aside(most * 9 // 10):
                asked = asyncio.create_task(ask(client, "a", told))
                await until(lambda: house.account.has_waiting_requests)
                small = client.setting_aside(5000)
                coming = asyncio.create_task(small.__aenter__())
                await until(lambda: len(house.account.waiting) == 1)
            assert len(await asked) == COUNT
            await coming
            await small.__aexit__(None, None, None)
            assert not house.account.has_waiting_requests

    play(scene())


def test_an_image_without_memory_is_refused_with_a_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_jobs, "_PATIENCE_SECONDS", 0.1)

    async def scene() -> None:
        async with small_house_of(directory) as (house, client, most):
            async with client.setting_aside(most):
                with pytest.raises(Unavailable, match="no memory became free") as refused:
                    async with client.setting_aside(most):
                        raise AssertionError
                assert refused.value.retry_after == 1
                told = Told(KIND).then([1], picture(KIND, 1, (1, 80, 80)), [8, 9])
                with pytest.raises(Unavailable):
                    await client.compute_image(told.images[0], told.shown[0].pixels)
            assert not house.account.waiting

    play(scene())


def test_who_waits_for_the_memory_of_images_is_not_given_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are decoded on other threads: the engine has no job meanwhile."""
    monkeypatch.setattr(watchdog, "PATIENCE_SECONDS", 0.1)

    async def scene() -> None:
        async with small_house_of(directory) as (house, client, most):
            told = Told(KIND).then(words(1, 2000))
            async with client.setting_aside(most):
                asked = asyncio.create_task(ask(client, "a", told))
                await until(lambda: house.account.has_waiting_requests)
                await asyncio.sleep(3)  # the engine looks each second
                assert house.engine.counted[KIND].stalls == Stalls()
            assert len(await asked) == COUNT

    play(scene())
