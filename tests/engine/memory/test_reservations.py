"""Jobs are on the one account: they wait for room, make room, and others wait for them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from omlx_server.compute import score
from omlx_server.compute.embed.backbone_encoder import PassSize
from omlx_server.compute.embed.embedder import Embedder
from omlx_server.compute.embed.loader import loading_embedder
from omlx_server.compute.embed.qwen3 import make_body
from omlx_server.compute.hardware import device
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.encoder import Pass
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.memory.pressure import MemoryPressure, PressureLevel
from omlx_server.core.memory.room import Claim
from omlx_server.core.work import Work
from omlx_server.engine.client.encoders import EmbeddingClient, EncoderModel
from omlx_server.engine.client.model_client import GeneratorClient, ModelClient
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.memory.reservations import JobRoom
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import NoMemory
from omlx_server.models.locate import Located
from omlx_server.wiring.encoders import on_account
from tests.compute.embed import tiny
from tests.engine.running import collect, request, some, until
from tests.engine.several import MB, PROMPTS, Several, held, play, several
from tests.tiny_models import save_tiny

KINDS = ("llama", "qwen3")
LONG = [(7 * j) % 190 + 1 for j in range(2400)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("room")
    for kind in KINDS:
        save_tiny(path / kind, kind)
    return path


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of a prompt take many of them."""
    monkeypatch.setattr(score, "_SLICE_BYTES", 4 * 199 * 16)


def account_of(limit: int, weights: int = 0, queue: int = 0) -> MemoryAccount:
    account = MemoryAccount(limit, queue)
    account.share(weights).set_weights(weights)
    return account


def room_of(account: MemoryAccount) -> JobRoom:
    """For the jobs of its first model."""
    return JobRoom(account.shares[0])


def account_of_all(instance: ModelInstance) -> MemoryAccount:
    assert instance.watch is not None
    return instance.watch.share.account


def at_once(work: Work[Claim]) -> Claim:
    """Of work that has nothing to wait for."""
    with pytest.raises(StopIteration) as end:
        next(work)
    claim: Claim = end.value.value
    return claim


# -- by numbers --------------------------------------------------------------------------


def test_a_job_may_have_what_weights_queue_and_floor_leave() -> None:
    account = account_of(10_000, weights=2_000, queue=600)
    assert (account.largest_job(), account.free()) == (10_000 - 2_000 - 600 - 400, 7_400)
    room = room_of(account)
    room.check(7_000)
    with pytest.raises(NoMemory, match=r"it needs 7 KB; held now: weights 2 KB of 10 KB"):
        room.check(7_001)


def test_a_refusal_tells_whether_other_models_are_in_the_way() -> None:
    account = account_of(10_000, weights=2_000)
    account.share(3_000).set_weights(3_000)
    for nbytes, fits in ((5_000, True), (7_600, True), (7_601, False)):
        with pytest.raises(NoMemory) as refused:
            room_of(account).check(nbytes)
        assert refused.value.fits_without_others is fits


def test_the_most_that_fits_is_set_aside_until_it_is_left() -> None:
    account = account_of(10_000)
    room = room_of(account)
    with at_once(room.claim([3_000, 6_000, 9_000, 12_000])) as count:
        assert (count, account.set_aside, account.free()) == (3, 9_000, 1_000)
        assert account.held() == Ledger(10_000, live=9_000)
    assert (account.set_aside, account.free()) == (0, 10_000)


def test_on_a_machine_that_is_short_a_job_takes_its_smallest_part() -> None:
    account = account_of(1000, weights=100)
    account.pressure = MemoryPressure(PressureLevel.WARN, taken=500)
    room = room_of(account)
    with at_once(room.claim([10, 200, 400])) as number:
        assert (number, account.set_aside) == (1, 10)


def test_who_finds_no_room_waits_and_says_how_much() -> None:
    account = account_of(10_000)
    room = room_of(account)
    with at_once(room.claim([6_000])):
        waiting = room.claim([5_000, 6_000])
        for _ in range(3):
            next(waiting)
            assert (account.set_aside, account.awaited_bytes) == (6_000, 5_000)
    with at_once(waiting) as count:
        assert (count, account.set_aside, account.awaited_bytes) == (2, 6_000, 0)


def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    account = account_of(10_000)
    room = room_of(account)
    with at_once(room.claim([6_000])):
        waiting = room.claim([5_000])
        next(waiting)
        waiting.close()
        assert account.awaited_bytes == 0


def test_jobs_wait_in_their_order() -> None:
    """Small ones without end would keep a large one waiting."""
    account = account_of(10_000)
    room = room_of(account)
    with at_once(room.claim([3_000])):
        large, small = room.claim([7_500]), room.claim([3_000])
        next(large)
        for _ in range(3):
            next(small)  # there is room for it
            assert (account.set_aside, account.awaited_bytes) == (3_000, 10_500)
    next(small)
    with at_once(large):
        next(small)
    with at_once(small) as count:
        assert (count, account.awaited_bytes) == (1, 0)


def test_a_model_that_comes_meanwhile_may_leave_none_for_ever() -> None:
    account = account_of(10_000)
    room = room_of(account)
    with at_once(room.claim([6_000])):
        waiting = room.claim([5_000])
        next(waiting)
        account.share(6_000)
        with pytest.raises(NoMemory):
            next(waiting)
        assert account.awaited_bytes == 0


def test_neighbours_count_with_jobs() -> None:
    account = account_of(10_000)
    share = account.shares[0]
    with at_once(room_of(account).claim([6_000])):
        waiting = room_of(account).claim([5_000])
        next(waiting)
        share.note_others()
        assert (share.live, share.reserved, share.at_work) == (6_000, 11_000, True)
        waiting.close()
    share.note_others()
    assert (share.live, share.reserved, share.at_work) == (0, 0, False)


# -- with models at work -----------------------------------------------------------------


def test_hot_tiers_make_room_for_a_job_down_to_their_floor(directory: Path) -> None:
    def take(instance: ModelInstance) -> tuple[int, int]:
        account = account_of_all(instance)
        most = account.largest_job()
        with at_once(room_of(account).claim([most])):
            return account.floor, account.limit - account.held().held

    async def scene() -> None:
        async with several(directory, memory={"limit": 8 * MB}) as house:
            clients = [await house.load(kind) for kind in KINDS]
            for number in range(8):
                prompt = [(number * 31 + j) % 190 + 1 for j in range(600)]
                for client in clients:
                    await collect(await client.submit(request(f"{number}{id(client)}", prompt, 2)))
            kept = [await client.ask(held) for client in clients]
            floor, left = await clients[0].ask(take)
            after = [await client.ask(held) for client in clients]
            assert sum(after) <= floor < sum(kept) and left >= 0

    play(scene())


def test_pinned_blocks_are_in_nobodys_way(directory: Path) -> None:
    """A job that could only have what they hold is refused; any other one gets its room."""

    def take(instance: ModelInstance) -> tuple[int, int]:
        account = account_of_all(instance)
        most = account.largest_job()
        with pytest.raises(NoMemory):
            next(room_of(account).claim([most + 1]))
        with at_once(room_of(account).claim([most])):
            return instance.cache.pinned.nbytes, account.floor

    async def scene() -> None:
        async with several(directory, memory={"limit": 8 * MB}) as house:
            client = await house.load("llama")
            for number in range(8):
                prompt = tuple((number * 31 + j) % 190 + 1 for j in range(600))
                await collect(await client.submit(request(str(number), list(prompt), 2)))
                await client.ask(partial(ModelInstance.pin, tokens=prompt, salt=b"", model="llama"))
            pinned, floor = await client.ask(take)
            assert pinned > 2 * floor

    play(scene())


def test_many_texts_leave_answers_room_to_grow(directory: Path) -> None:
    def counts(instance: ModelInstance) -> tuple[int, int]:
        account = account_of_all(instance)
        free = account.free()
        with at_once(room_of(account).claim([free // 4, free // 2 - 1000, free - 1000])) as some:
            pass
        with at_once(room_of(account).claim([free - 1000])) as one:
            return some, one

    async def scene() -> None:
        async with several(directory, memory={"limit": 20 * MB}) as house:
            client = await house.load("llama")
            answer = await client.submit(request("x", LONG[:300], 400))
            assert await client.ask(counts) == (2, 1)
            await collect(answer)
            assert await client.ask(counts) == (3, 1)

    play(scene())


@pytest.mark.usefixtures("small_slices")
def test_a_prompt_that_is_scored_is_on_the_account(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory) as house:
            client = await house.load("llama")
            job = asyncio.create_task(client.score(LONG, 0))
            await until(lambda: house.account.set_aside > 0)
            await until(
                lambda: (live := memory(house).live) > 0 and live == house.account.set_aside
            )
            held_by_caches = 2400 * 2 * 2 * 2 * 16 * 4
            assert held_by_caches < house.account.set_aside < 8 * held_by_caches + 2 * MB
            assert not job.done()
            assert len(await job) == len(LONG) - 1
            assert house.account.set_aside == 0
            job = asyncio.create_task(client.score(LONG, 0))
            await until(lambda: house.account.set_aside > 0)
            job.cancel()
            await until(lambda: house.account.set_aside == 0)

    play(scene())


def memory(house: Several) -> Ledger:
    assert house.engine.memory is not None
    return house.engine.memory.ledger


@pytest.mark.usefixtures("small_slices")
def test_who_does_not_fit_beside_a_job_is_let_in_after_it(directory: Path) -> None:
    """Both fit alone."""

    async def scene() -> None:
        async with several(directory, memory={"limit": 5 * MB}) as house:
            client, other = await house.load("llama"), await house.load("qwen3")
            for asked in (client, other):
                job = asyncio.create_task(client.score(LONG, 0))
                await until(lambda: house.account.set_aside > 0)
                answer = await asked.submit(request(f"x{id(asked)}", LONG, 3))
                coming = asyncio.create_task(collect(answer))
                await asyncio.wait([job, coming], return_when=asyncio.FIRST_COMPLETED)
                assert job.done() and not coming.done()
                kind = "llama" if asked is client else "qwen3"
                assert await coming == house.oracle(kind, LONG, 3)

    play(scene())


@pytest.mark.usefixtures("small_slices")
def test_a_job_that_does_not_fit_beside_answers_waits_for_them(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory, memory={"limit": 4 * MB}) as house:
            client = await house.load("llama")
            answer = await client.submit(request("x", LONG, 200))
            first = await some(answer, 1)
            job = asyncio.create_task(client.score(LONG, 0))
            await until(lambda: house.account.awaited_bytes > 0)
            assert house.account.set_aside == 0
            found = first + await collect(answer)
            assert len(found) == 200 and house.is_right("llama", LONG, found)
            assert len(await job) == len(LONG) - 1

    play(scene())


@pytest.mark.usefixtures("small_slices")
def test_requests_without_end_do_not_keep_a_job_waiting(directory: Path) -> None:
    """Two clients who always have one in the queue; the job fits beside neither."""
    done = list[int]()

    async def scene() -> None:
        async with several(directory, memory={"limit": 5 * MB}) as house:
            client = await house.load("llama")

            async def ask_on(name: str) -> None:
                for number in range(30):
                    prompt = [(number * 31 + j) % 190 + 1 for j in range(2200)]
                    await collect(await client.submit(request(f"{name}{number}", prompt, 2)))
                    done.append(number)

            asking = [asyncio.create_task(ask_on(name)) for name in "ab"]
            await until(lambda: len(done) > 1)
            assert len(await client.score(LONG, 0)) == len(LONG) - 1
            assert len(done) < 10
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    play(scene())


def test_a_model_that_comes_waits_for_jobs_that_take_its_room() -> None:
    account = account_of(10_000)
    room = room_of(account)
    with at_once(room.claim([6_000])):
        account.share(6_000)
        coming = account.wait_for_jobs()
        for _ in range(3):
            next(coming)
    with pytest.raises(StopIteration):
        next(coming)
    with at_once(room.claim([1_000])):
        roomy = account.wait_for_jobs()
        next(roomy)
        with pytest.raises(StopIteration):
            next(roomy)


def test_a_prompt_that_could_never_be_scored_is_refused(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory, memory={"limit": 3 * MB}) as house:
            client = await house.load("llama")
            with pytest.raises(NoMemory, match="it needs"):
                await client.score(LONG * 4, 0)
            assert len(await client.score(LONG[:100], 0)) == 99

    play(scene())


# -- encoders ---------------------------------------------------------------------------

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "head_dim": 32,
    "max_position_embeddings": 4096,
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Located:
    path = tmp_path_factory.mktemp("reader")
    config = {**tiny.cases()["Qwen3Model"]["config"], **SIZES}
    (path / "config.json").write_text(json.dumps(config))
    weights = dict(tree_flatten(make_body(config, {}).parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), weights)
    return Located(path, ("reader",))


@asynccontextmanager
async def reading(
    house: Several, located: Located, **more: Any
) -> AsyncIterator[tuple[ModelClient[EncoderModel[Embedder]], EmbeddingClient]]:
    client = ModelClient[EncoderModel[Embedder]](house.engine, **more)
    await client.load(on_account(house.account, loading_embedder(located.path), 1000))
    await client.ask(widen)
    yield client, await EmbeddingClient.of(client)
    await client.unload()


def widen(reader: EncoderModel[Embedder]) -> None:
    """So that there is something to hold back."""
    reader.model.pass_size = PassSize(4096, 64)


def test_texts_are_read_in_pieces_where_memory_is_short(directory: Path, reader: Located) -> None:
    texts = [TokenizedText(tuple((n + j) % 38 + 2 for j in range(100))) for n in range(40)]

    async def scene() -> None:
        memory = {"limit": 400 * MB}
        async with several(directory, memory=memory) as house, reading(house, reader) as made:
            client, embeddings = made
            expected = await embeddings.embed(texts)
            needs = await client.ask(lambda r: r.model.encoder.plan.needs(Pass(40, 100, 64)))
            one = await client.ask(lambda r: r.model.encoder.plan.needs(Pass(1, 100, 64)))
            limit = house.account.weights + needs // 4
            assert one < needs // 8
            house.account.limit = limit
            outside = await house.engine.call(device.active_memory)
            await house.engine.call(device.begin_peak)
            got = await embeddings.embed(texts)
            peak = await house.engine.call(device.peak_memory)
            assert peak - outside <= 1.05 * needs // 4
            assert np.abs(got - expected).max() < 1e-5
            with pytest.raises(NoMemory, match="held now: weights"):
                await embeddings.embed([TokenizedText((5,) * 4000)])
            assert house.account.set_aside == 0

    play(scene())


def test_a_job_that_fits_no_more_asks_others_to_leave(directory: Path, reader: Located) -> None:
    """One after the other, for what then fits; nobody for what would not."""
    text = TokenizedText(tuple(j % 38 + 2 for j in range(100)))

    async def scene() -> None:
        async with several(directory, memory={"limit": 400 * MB}) as house:
            others = [await house.load(kind) for kind in KINDS]

            async def make_way() -> bool:
                if others:
                    await others.pop().unload()
                return True

            async with reading(house, reader, make_way=make_way) as (client, embeddings):
                expected = await embeddings.embed([text])
                need = await client.ask(lambda r: r.model.encoder.plan.needs(Pass(1, 100, 64)))
                house.account.limit = client.weight_bytes + int(need / 0.95) + 10_000
                with pytest.raises(NoMemory):
                    await embeddings.embed([TokenizedText((5,) * 4000)])
                assert len(others) == 2
                assert np.abs(await embeddings.embed([text]) - expected).max() < 1e-5
                assert not others

    play(scene())


@pytest.mark.usefixtures("small_slices")
def test_a_prompt_that_is_scored_asks_others_to_leave(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory, memory={"limit": 400 * MB}) as house:
            other = await house.load("qwen3")
            asked = list[bool]()

            async def make_way() -> bool:
                asked.append(True)
                await other.unload()
                return True

            client = await house.load("llama", make_way)
            scoring = asyncio.create_task(client.score(LONG, 0))
            need = 0
            while not need:
                need = await house.engine.call(lambda: house.account.set_aside)
            expected = await scoring
            house.account.limit = house.account.weights + int((house.account.queue + need) / 0.95)
            house.account.limit -= 1000
            with pytest.raises(NoMemory):
                await client.score(LONG * 4, 0)
            assert not asked
            got = await client.score(LONG, 0)
            assert asked == [True]
            assert got == expected

    play(scene())


def test_a_stream_and_a_reader_stay_within_the_limit_together(
    directory: Path, reader: Located
) -> None:
    """Of all that MLX holds, at each step and each slice."""
    texts = [TokenizedText(tuple((n + j) % 38 + 2 for j in range(60))) for n in range(60)]

    async def scene() -> None:
        async with several(directory, memory={"limit": 9 * MB}) as house:
            chat: GeneratorClient = await house.load("llama")
            async with reading(house, reader) as (_, embeddings):
                outside = await house.engine.call(device.active_memory)
                outside -= await house.engine.call(lambda: house.account.held().held)
                answers = [
                    asyncio.create_task(
                        collect(await chat.submit(request(f"s{i}", PROMPTS[i], 150)))
                    )
                    for i in range(4)
                ]
                await house.engine.call(device.begin_peak)
                vectors = await asyncio.gather(*(embeddings.embed(texts) for _ in range(3)))
                peak = await house.engine.call(device.peak_memory)
                assert peak - outside <= 9 * MB
                for one in vectors:
                    assert np.abs(one - vectors[0]).max() < 1e-5
                for number, answer in enumerate(await asyncio.gather(*answers)):
                    assert len(answer) == 150
                    assert house.is_right("llama", PROMPTS[number], answer)

    play(scene())


# -- buffers -----------------------------------------------------------------------------


def test_instances_share_the_buffers_that_the_device_may_hold(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "MAX_BUFFERS", 120)

    def buffers(instance: ModelInstance) -> int:
        return instance.cache.index.buffers

    async def fill(client: GeneratorClient, name: str) -> None:
        for number in range(4):
            prompt = [(number * 31 + j) % 190 + 1 for j in range(600)]
            await collect(await client.submit(request(f"{name}{number}", prompt, 2)))

    async def scene() -> None:
        async with several(directory) as house:
            one = await house.load("llama")
            await fill(one, "one")
            alone = await one.ask(buffers)
            assert 50 < alone <= 60
            two = await house.load("qwen3")
            await fill(two, "two")
            first, second = await one.ask(buffers), await two.ask(buffers)
            assert first + second <= 60
            assert second > 50 > 10 > first, "those of the model that rests go first"
            await one.ask(lambda instance: instance.check_invariants())

    play(scene())
