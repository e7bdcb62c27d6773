"""What a healthy server shows too rarely: loading, failing steps, errors nobody foresaw.

In process, with the real app and the real engine on a tiny model; only the runner is made to fail.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import Request

from omlx_server import clock as own_clock
from omlx_server.api.own import health
from omlx_server.compute.launched import Launched
from omlx_server.compute.model.loader import load
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.blocks.block import NOTHING_KEPT
from omlx_server.core.images import ImageSpan
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.step import Join, Step
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.wiring.model_factory import InstanceFactory
from tests.api.harness import CHAT, assert_envelope, stream_events
from tests.api.moments import Open, opened, play, slow

__all__ = ["opened"]

SECRET = "a word of the prompt"


class FailingRunner(ModelRunner):
    """Can't go on with rows that have a logit bias, once they have two tokens."""

    def decode(self, step: Step) -> Launched:
        rows = self._batch.rows
        if any(row.sampling.logit_bias and row.generated > 1 for row in rows):
            raise RuntimeError(SECRET)
        return super().decode(step)

    def probe(self, join: Join, images: tuple[ImageSpan, ...] = ()) -> None:
        if join.sampling.logit_bias:
            raise RuntimeError(SECRET)
        super().probe(join, images)


def failing(path: Path) -> Callable[[InstanceFactory], ModelInstance]:
    budget = HotBudget(nbytes=0, checkpoint_bytes=0)
    return lambda instances: ModelInstance(
        FailingRunner(load(path)),
        SchedulerLimits(),
        lambda: PrefixCache(NOTHING_KEPT, "none", budget),
        {},
    )


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
                clock = SimpleNamespace(now=lambda waited=waited: beat + waited)
                monkeypatch.setattr(health, "clock", clock)
                assert await place.health("live") == status
            monkeypatch.setattr(health, "clock", own_clock)
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
