"""Clocks that jump, as those of a machine that slept: no request ends early, no metric shows it."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from omlx_server import clock
from tests.api.harness import CHAT, UNPROBED, samples, serving
from tests.api.moments import Open, opened, play

__all__ = ["opened"]

_DEADLINE_SECONDS = 5
_ASLEEP_SECONDS = 6.5
_HOURS = 4 * 3600.0


def _seconds_of_requests(metrics: str) -> list[float]:
    told = samples(metrics)
    names = (
        "e2e_request_latency_seconds",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
    )
    return [told[f"vllm:{name}_sum"] for name in names]


def test_a_server_that_was_stopped_goes_on_with_its_requests(
    tiny_models: Path, tmp_path: Path
) -> None:
    deadline = f"server.request_timeout_seconds={_DEADLINE_SECONDS}"
    with serving("tiny", tmp_path, f"models.dirs={tiny_models}", UNPROBED, deadline) as server:
        server.canary()
        body = server.body("A story.", stream=True, max_tokens=600, ignore_eos=True)
        with httpx.stream("POST", f"{server.url}{CHAT}", json=body, timeout=60) as response:
            lines = response.iter_lines()
            first = next(lines)
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(_ASLEEP_SECONDS)
            os.kill(server.pid, signal.SIGCONT)
            text = "\n".join([first, *lines])
        assert '"finish_reason":"length"' in text, text[-500:]
        assert max(_seconds_of_requests(server.http.get(f"{server.url}/metrics").text)) < 5
        assert server.http.get(f"{server.url}/health/live").status_code == 200


@pytest.mark.parametrize("hours", [_HOURS, -_HOURS])
def test_clocks_that_jump_end_no_request(
    opened: Open, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    """The wall clock jumps either way, the monotonic one ahead."""
    wall, ahead = [0.0], [0.0]
    real, monotonic = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: real() + wall[0])
    monkeypatch.setattr(clock._CLOCK, "_source", lambda: monotonic() + ahead[0])
    monkeypatch.setattr(clock._CLOCK, "_left_out", 0.0)  # other tests have the same clock

    async def scene() -> None:
        async with opened() as place:
            await place.ready()
            context = place.app.state.context
            place.app.change(replace(context, request_timeout_seconds=_DEADLINE_SECONDS))
            ticking = asyncio.create_task(clock.tick())
            asking = asyncio.create_task(place.ask(max_tokens=200))
            while not place.engine.open_requests:
                await asyncio.sleep(0.001)
            wall[0], ahead[0] = hours, abs(hours)
            answer = await asking
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 200
            assert max(_seconds_of_requests((await place.http.get("/metrics")).text)) < 5
            assert await place.health("live") == 200
            ticking.cancel()

    play(scene())
