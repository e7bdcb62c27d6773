"""What a healthy server shows too rarely: loading, failing steps, errors nobody foresaw.

In process, with the real app and the real engine on a tiny model; only the runner is made to fail.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import Request

from omlx_server.api.app import create_app
from omlx_server.api.models.served import ServedModels
from omlx_server.api.own import health
from omlx_server.compute.model.loader import load
from omlx_server.compute.runner import Launched, ModelRunner
from omlx_server.core.prefix_cache.eviction import Budget
from omlx_server.core.prefix_cache.no_cache import NoCache
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.step import Join, Step
from omlx_server.core.work import finish
from omlx_server.engine.model_instance import Lane
from omlx_server.models.locate import Located
from omlx_server.settings import Cache, Settings
from omlx_server.store.hot import HotTier
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.wiring.context import make_context
from omlx_server.wiring.model_factory import Lanes
from omlx_server.wiring.served import make_served
from tests.api.fixed import fixed_models
from tests.api.harness import CHAT, assert_envelope, stream_events
from tests.engine.alone import Alone

SECRET = "a word of the prompt"
RAM_ONLY = Settings(cache=Cache(hot_cache_only=True))


class FailingRunner(ModelRunner):
    """Can't go on with rows that have a logit bias, once they have two tokens."""

    def execute(self, step: Step) -> Launched:
        rows = self._batch.rows
        if any(row.sampling.logit_bias and row.generated > 1 for row in rows):
            raise RuntimeError(SECRET)
        return super().execute(step)

    def probe(self, join: Join) -> None:
        if join.sampling.logit_bias:
            raise RuntimeError(SECRET)
        super().probe(join)


class Place:
    """One app with its engine, and a client that talks to it without sockets."""

    def __init__(self, models: ServedModels, engine: Alone) -> None:
        self.app = create_app(make_context(models, Settings()))
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        self.models, self.engine = models, engine
        self._starting = asyncio.create_task(self._start())

    async def ready(self) -> None:
        """The server has said that it is."""
        await self._starting

    async def _start(self) -> None:
        for known in self.models.catalogue.known():
            await self.models.pool.load(known.wanted)
        self.models.started = True

    async def ask(self, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "Hi"}]
        body = {"model": "tiny", "messages": messages, "temperature": 0, "ignore_eos": True}
        return await self.http.post(CHAT, json={**body, "max_tokens": 12, **fields})

    async def health(self, which: str) -> int:
        return (await self.http.get(f"/health/{which}")).status_code


Open = Callable[..., Any]


def tiny_lane(lanes: Lanes, path: Path) -> Lane:
    """As the server makes it."""
    return finish(lanes.making(Located(path, ("tiny",))))


@pytest.fixture
def opened(tiny_models: Path) -> Open:
    path = tiny_models / "org" / "tiny"

    @asynccontextmanager
    async def opened(
        lane: Callable[[Lanes], Lane] = lambda lanes: tiny_lane(lanes, path), patience: float = 30
    ) -> AsyncIterator[Place]:
        failures: list[str] = []
        lanes = Lanes(RAM_ONLY)
        engine = Alone(lambda: lane(lanes), failures.append, lanes.account)
        named = Located(path, ("tiny",))
        tokenizer = Tokenizer.load(path)
        vocab = tokenizer.vocab_size
        served = make_served(named, engine, Settings(), lambda: "", "fp_0", tokenizer, vocab)
        await engine.start()
        models = fixed_models(served, ready=engine.ready, vitals=engine.whole, patience=patience)
        place = Place(models, engine)
        try:
            async with place.http:
                yield place
            assert engine.open_requests == 0
        finally:
            await engine.stop()
        assert not failures

    return opened


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(120):
            await scene

    asyncio.run(timed())


def failing(path: Path) -> Callable[[Lanes], Lane]:
    budget = Budget(nbytes=0, checkpoint_bytes=0)
    return lambda lanes: Lane(
        FailingRunner(load(path)), Limits(), lambda: NoCache(budget), HotTier()
    )


def slow(path: Path, loaded: threading.Event) -> Callable[[Lanes], Lane]:
    def make(lanes: Lanes) -> Lane:
        assert loaded.wait(60)
        return tiny_lane(lanes, path)

    return make


def test_requests_wait_while_the_model_loads(opened: Open, tiny_models: Path) -> None:
    loaded = threading.Event()

    async def scene() -> None:
        async with opened(slow(tiny_models / "org" / "tiny", loaded)) as place:
            asked = [asyncio.create_task(place.ask(stream=stream)) for stream in (False, True)]
            await asyncio.sleep(0.2)
            assert [await place.health("live"), await place.health("ready")] == [200, 503]
            health = (await place.http.get("/health")).json()
            assert [(e["model"], e["state"]) for e in health["engines"]] == [("tiny", "starting")]
            assert (await place.http.get("/v1/models")).status_code == 200
            assert not any(task.done() for task in asked)
            loaded.set()
            whole, streamed = await asyncio.gather(*asked)
            assert (whole.status_code, streamed.status_code) == (200, 200)
            assert whole.json()["usage"]["completion_tokens"] == 12
            assert stream_events(streamed.text)[-1]["choices"][0]["finish_reason"] == "length"
            await place.ready()
            assert [await place.health("live"), await place.health("ready")] == [200, 200]

    play(scene())


def test_who_has_waited_long_enough_is_told_to_come_again(opened: Open, tiny_models: Path) -> None:
    loaded = threading.Event()

    async def scene() -> None:
        async with opened(slow(tiny_models / "org" / "tiny", loaded), patience=0.2) as place:
            for stream in (False, True):
                late = await place.ask(stream=stream)
                assert assert_envelope(late, 503)["code"] == "unavailable"
                assert int(late.headers["retry-after"]) > 0
            assert [await place.health("live"), await place.health("ready")] == [200, 503]
            loaded.set()
            await place.ready()
            assert (await place.ask()).status_code == 200

    play(scene())


def test_a_failing_request_ends_alone(opened: Open, tiny_models: Path) -> None:
    """It gets an error in the envelope, in a stream as its last event; the others their text."""

    async def scene() -> None:
        async with opened(failing(tiny_models / "org" / "tiny")) as place:
            await place.ready()
            alone = (await place.ask()).json()["choices"]
            bias = {"logit_bias": {"7": 1}}
            others = [place.ask() for _ in range(3)]
            *good, whole, streamed = await asyncio.gather(
                *others, place.ask(**bias), place.ask(**bias, stream=True)
            )
            assert all(answer.json()["choices"] == alone for answer in good)
            assert assert_envelope(whole, 500)["code"] == "internal_error"
            assert SECRET not in whole.text + streamed.text
            assert streamed.status_code == 200
            *chunks, last = stream_events(streamed.text)
            assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
            assert set(last) == {"error"} and last["error"]["code"] == "internal_error"
            assert await place.health("ready") == 200

    play(scene())


def test_what_nobody_foresaw_is_a_500_without_details(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: Request) -> None:
        raise ZeroDivisionError(SECRET)

    async def scene() -> None:
        async with opened() as place:
            await place.ready()
            place.app.add_api_route("/broken", broken)
            response = await place.http.get("/broken")
            assert assert_envelope(response, 500)["code"] == "internal_error"
            assert SECRET not in response.text
            assert (await place.ask()).status_code == 200

    with caplog.at_level(logging.ERROR):
        play(scene())
    assert "ZeroDivisionError" in caplog.text


def test_a_thread_that_hangs_turns_liveness_red(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with opened() as place:
            await place.ready()
            beat = place.engine.whole._engine.beat
            for waited, status in ((29.0, 200), (60.0, 503)):
                clock = SimpleNamespace(monotonic=lambda waited=waited: beat + waited)
                monkeypatch.setattr(health, "time", clock)
                assert await place.health("live") == status
            monkeypatch.setattr(health, "time", time)
            assert await place.health("live") == 200

    play(scene())


def test_the_api_describes_itself(opened: Open) -> None:
    """Warnings are errors here: the description must be made without one."""

    async def scene() -> None:
        async with opened() as place:
            await place.ready()
            page = (await place.http.get("/openapi.json")).json()
            fields = page["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]
            assert fields["schema"] == {"$ref": "#/components/schemas/ChatRequest"}
            chat = page["components"]["schemas"]["ChatRequest"]
            assert chat["required"] == ["model", "messages"]

    play(scene())
