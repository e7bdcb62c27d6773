"""Embeddings and answers share the one mlx thread: counted in steps and slices, not in seconds."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from omlx_server.clock import now
from omlx_server.compute.embed import loader
from omlx_server.compute.embed.embedder import Embedder
from omlx_server.core.crash import guarded
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.step import Step
from omlx_server.core.work import Work
from omlx_server.engine import turns as engine_turns
from omlx_server.engine.client import engine_client
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.engine.memory.reservations import JobRoom
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.models.locate import Located
from omlx_server.models.progress import Silent
from omlx_server.settings import Settings
from omlx_server.wiring.encoders import FoundEncoders
from omlx_server.wiring.model_directory import find_model
from omlx_server.wiring.model_factory import InstanceFactory
from tests.api.encoders.inside import Inside, inside, play
from tests.api.harness import Json, assert_envelope

PATH = "/v1/embeddings"
NOTHING = FoundEncoders()
TEXTS = 100
LONG: Json = {"input": [list(range(1000 + i, 1040 + i)) for i in range(TEXTS)]}  # 17 slices
MANY: Json = {"input": LONG["input"] * 20}


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the mlx thread does, in order: steps of answers, slices of jobs."""
    done: list[str] = []
    launch = ModelInstance.launch

    def noted_launch(instance: ModelInstance, step: Step) -> Any:
        done.append("step")
        return launch(instance, step)

    def noted_slice(act: Any, *given: Any) -> Any:
        done.append("slice")
        return guarded(act, *given)

    monkeypatch.setattr(ModelInstance, "launch", noted_launch)
    monkeypatch.setattr(engine_turns, "guarded", noted_slice)
    return done


async def answer(engine: GeneratorClient, tokens: list[int], started: asyncio.Event) -> None:
    """Takes every token that the model gives, until it is cancelled. No token ends it."""
    sampling = SamplingParams(max_tokens=1 << 12, temperature=0)
    request = Request(RequestId("stream"), (1, 2, 3), sampling, arrived=now())
    async with await engine.submit(request) as generation:
        async for events in generation:
            tokens += [event.token for event in events if event.token is not None]
            started.set()


async def begun(place: Inside, body: Json, turns: list[str]) -> "asyncio.Task[httpx.Response]":
    """A request whose first slice has run, alone in `turns`: loading was done in slices, too."""
    await place.ready()
    turns.clear()
    asked = asyncio.create_task(place.http.post(PATH, json=body))
    while not turns:
        await asyncio.sleep(0)
    return asked


async def beside_a_stream(place: Inside, tokens: list[int], body: Json) -> np.ndarray[Any, Any]:
    """The vectors of `body`, asked for while an answer streams."""
    started = asyncio.Event()
    stream = asyncio.create_task(answer(place.engine, tokens, started))
    await started.wait()
    response = await place.http.post(PATH, json=body)
    stream.cancel()
    await asyncio.wait({stream})
    return np.array([row["embedding"] for row in response.json()["data"]])


def test_a_stream_goes_on_while_a_hundred_texts_are_read(minilm: Located, turns: list[str]) -> None:
    starter = find_model("starter", Settings(), Silent())

    async def scene() -> None:
        async with inside(starter, FoundEncoders(embedder=minilm)) as place:
            await place.ready()
            turns.clear()  # loading was done in slices, too
            tokens: list[int] = []
            vectors = await beside_a_stream(place, tokens, LONG)
            between = turns[turns.index("slice") : len(turns) - turns[::-1].index("slice")]
            runs = [(kind, len(list(run))) for kind, run in groupby(between)]
            slices = sum(length for kind, length in runs if kind == "slice")
            assert slices >= 15
            # They share the time: a slice and one or two steps take as long as each other.
            assert max(length for _, length in runs) <= 4
            assert len(tokens) >= slices / 2
            calm = await place.http.post(PATH, json={"input": LONG["input"][::20]})
            alone = np.array([row["embedding"] for row in calm.json()["data"]])
            assert np.abs(vectors[::20] - alone).max() < 1e-6

    play(scene())


def test_short_requests_do_not_wait_for_a_long_one(
    tiny_chat: Located, minilm: Located, turns: list[str]
) -> None:
    async def scene() -> None:
        async with inside(tiny_chat, FoundEncoders(embedder=minilm)) as place:
            long = await begun(place, MANY, turns)
            for _ in range(3):
                assert (await place.http.post(PATH, json={"input": "hello"})).status_code == 200
            assert not long.done() and turns.count("slice") < 100
            long.cancel()

    play(scene())


@pytest.fixture
def one_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine_client, "_MAX_JOBS", 1)
    yield


@pytest.mark.usefixtures("one_job")
def test_too_many_requests_are_told_to_come_back(
    tiny_chat: Located, minilm: Located, turns: list[str]
) -> None:
    async def scene() -> None:
        async with inside(tiny_chat, FoundEncoders(embedder=minilm)) as place:
            long = await begun(place, LONG, turns)
            refused = await place.http.post(PATH, json={"input": "hello"})
            assert assert_envelope(refused, 429)["code"] == "queue_full"
            assert refused.headers["retry-after"] == "1"
            assert (await long).status_code == 200
            assert (await place.http.post(PATH, json={"input": "hello"})).status_code == 200

    play(scene())


def test_a_request_past_its_time_ends(
    tiny_chat: Located, minilm: Located, turns: list[str]
) -> None:
    async def scene() -> None:
        async with inside(tiny_chat, FoundEncoders(embedder=minilm), timeout=0.3) as place:
            await place.ready()
            turns.clear()  # loading was done in slices, too
            late = await place.http.post(PATH, json=MANY)
            assert assert_envelope(late, 504)["code"] == "deadline_exceeded"
            assert turns.count("slice") < 170
            hello = [await place.http.post(PATH, json={"input": "hello"}) for _ in range(5)]
            assert 200 in [answer.status_code for answer in hello], "machines may pause"

    play(scene())


def test_what_could_never_fit_is_refused_as_a_prompt_is(
    tiny_chat: Located, minilm: Located
) -> None:
    limit = 108_000_000

    async def scene() -> None:
        async with inside(tiny_chat, FoundEncoders(embedder=minilm), limit=limit) as place:
            await place.ready()
            assert (await place.http.post(PATH, json={"input": "hello"})).status_code == 200
            refused = await place.http.post(PATH, json={"input": [[1000] * 250]})
            said = assert_envelope(refused, 503)
            assert said["code"] == "insufficient_memory"
            assert "it needs" in said["message"] and "held now: weights 9" in said["message"]
            assert (await place.http.post(PATH, json={"input": "hello"})).status_code == 200

    play(scene())


def test_a_model_that_nobody_uses_leaves_for_what_does_not_fit_beside_it(
    tiny_chat: Located, minilm: Located, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = list[int]()
    check = JobRoom.check

    def noted_check(room: JobRoom, nbytes: int) -> None:
        needs.append(nbytes)
        check(room, nbytes)

    monkeypatch.setattr(JobRoom, "check", noted_check)

    async def vector(place: Inside) -> Any:
        said = await place.http.post(PATH, json={"input": "hello"})
        assert said.status_code == 200, said.text
        return said.json()["data"][0]["embedding"]

    async def scene() -> None:
        async with inside(tiny_chat, FoundEncoders(embedder=minilm), limit=1 << 30) as place:
            await place.ready()
            alone, account = await vector(place), place.account
            account.limit = account.weights + int((account.queue + max(needs)) / 0.95) - 1000
            assert await vector(place) == alone
            assert [model.names for model in place.models.pool.loaded()] == [minilm.names]
            account.limit = 1 << 30
            body: Json = {"model": tiny_chat.names[0], "prompt": "hello", "max_tokens": 2}
            assert (await place.http.post("/v1/completions", json=body)).status_code == 200

    play(scene())


def test_what_there_is_to_say_without_a_model(tiny_chat: Located, minilm: Located) -> None:
    async def scene() -> None:
        async with inside(tiny_chat, NOTHING) as place:
            await place.ready()
            for path, flag in ((PATH, "--embedding-model"), ("/v1/rerank", "--reranker")):
                body: Json = {"input": "a", "query": "q", "documents": ["a"]}
                error = assert_envelope(await place.http.post(path, json=body), 400)
                assert flag in error["message"]
                for name, status in (("org/tiny", 400), ("nobody", 404)):
                    named = await place.http.post(path, json={**body, "model": name})
                    assert flag in assert_envelope(named, status)["message"]

    play(scene())


def test_requests_wait_until_it_is_loaded(
    tiny_chat: Located, minilm: Located, slow: Callable[[], None]
) -> None:
    async def scene() -> None:
        async with inside(tiny_chat, FoundEncoders(embedder=minilm)) as place:
            early = asyncio.create_task(place.http.post(PATH, json={"input": "a"}))
            await asyncio.sleep(0.2)
            assert not early.done()
            listed = (await place.http.get("/v1/models")).json()["data"]
            assert [row["id"] for row in listed] == [*tiny_chat.names, *minilm.names]
            slow()
            assert (await early).status_code == 200
            await place.ready()
            assert (await place.http.post(PATH, json={"input": "a"})).status_code == 200

    play(scene())


def test_whoever_has_waited_long_enough_for_it_comes_again(
    tiny_chat: Located, minilm: Located, slow: Callable[[], None]
) -> None:
    async def scene() -> None:
        async with inside(tiny_chat, FoundEncoders(embedder=minilm), patience=0.2) as place:
            early = await place.http.post(PATH, json={"input": "a"})
            assert assert_envelope(early, 503)["code"] == "unavailable"
            assert int(early.headers["retry-after"]) > 0
            slow()
            await place.ready()
            assert (await place.http.post(PATH, json={"input": "a"})).status_code == 200

    play(scene())


def test_the_wait_for_a_model_counts_as_time_of_the_request(
    tiny_chat: Located, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which it would have been answered in, had it begun when the model was there."""
    go, making = threading.Event(), InstanceFactory.making

    def held(instances: InstanceFactory, *of: Any) -> Work[ModelInstance]:
        assert go.wait(60)
        return (yield from making(instances, *of))

    monkeypatch.setattr(InstanceFactory, "making", held)
    body: Json = {"model": tiny_chat.names[0], "prompt": "hello", "max_tokens": 1}

    async def scene() -> None:
        async with inside(tiny_chat, NOTHING, timeout=2) as place:
            early = asyncio.create_task(place.http.post("/v1/completions", json=body))
            await asyncio.sleep(2.1)
            go.set()
            assert assert_envelope(await early, 504)["code"] == "deadline_exceeded"
            again = [await place.http.post("/v1/completions", json=body) for _ in range(5)]
            assert 200 in [answer.status_code for answer in again], "machines may pause"

    play(scene())


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Models are loaded only once this is called."""
    go = threading.Event()
    load = loader.loading_embedder

    def held(path: Path) -> Work[Embedder]:
        assert go.wait(60)
        return (yield from load(path))

    monkeypatch.setattr("omlx_server.wiring.loading.loading_embedder", held)
    return go.set
