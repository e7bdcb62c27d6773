"""Full queues, deadlines, slow readers, keys, and the ways to end."""

import asyncio
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import psutil
import pytest
from openai import OpenAI

from tests.api.harness import (
    CHAT,
    MARKER,
    UNPROBED,
    ServerProcess,
    assert_envelope,
    samples,
    serving,
    stream_events,
    text_of,
    wait_for,
)

KEY = f"correct-horse-{MARKER}"
LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True, "n": 8}
Start = Callable[..., AbstractContextManager[ServerProcess]]


@pytest.fixture
def start(tiny_models: Path, tmp_path: Path) -> Start:
    """A tiny server of its own, with these settings."""

    def starting(*settings: str) -> AbstractContextManager[ServerProcess]:
        return serving("tiny", tmp_path, f"models.dirs={tiny_models}", UNPROBED, *settings)

    return starting


@pytest.fixture(scope="module")
def narrow(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its queue has room for one."""
    sets = (
        f"models.dirs={tiny_models}",
        UNPROBED,
        "scheduler.max_queue=1",
        "scheduler.max_batch_size=8",
    )
    with serving("tiny", tmp_path_factory.mktemp("narrow"), *sets) as server:
        yield server


@contextmanager
def streaming(server: ServerProcess, **fields: Any) -> Iterator[Iterator[str]]:
    """The lines of a long stream, of which the first has come."""
    body = server.body("A long story.", stream=True, **{**LONG, **fields})
    with httpx.stream("POST", f"{server.url}{CHAT}", json=body, timeout=60) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


# -- the queue -------------------------------------------------------------------------------


def test_a_burst_is_answered_or_refused_and_nothing_is_lost(narrow: ServerProcess) -> None:
    async def burst(server: ServerProcess) -> list[httpx.Response]:
        body = server.body("Sing, canary.", max_tokens=64, ignore_eos=True)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as http:
            posts = [http.post(f"{server.url}{CHAT}", json=body) for _ in range(200)]
            paths = ("/health", "/health/live", "/metrics")
            health = [http.get(f"{server.url}{path}") for path in paths * 10]
            answers, looks = await asyncio.gather(asyncio.gather(*posts), asyncio.gather(*health))
        assert all(look.status_code == 200 for look in looks)
        return answers

    narrow.wait_idle()
    song = text_of(narrow.chat("Sing, canary.", max_tokens=64, ignore_eos=True))
    answers = asyncio.run(burst(narrow))
    # How many are answered depends on who is quicker, the burst or the first step.
    assert {answer.status_code for answer in answers} == {200, 429}
    for answer in answers:
        if answer.status_code == 200:
            assert text_of(answer.json()) == song
        else:
            error = assert_envelope(answer, 429)
            assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
    told = samples(httpx.get(f"{narrow.url}/metrics", trust_env=False).text)
    assert told['omlx_oldest_waiting_seconds{size="short"}'] == 0
    narrow.wait_idle()


def test_a_full_queue_is_a_rate_limit_error_also_for_streams(narrow: ServerProcess) -> None:
    narrow.wait_idle()
    with ExitStack() as on:
        on.enter_context(streaming(narrow))
        url = httpx.URL(narrow.url)
        waiting = on.enter_context(socket.create_connection((url.host, url.port or 80)))
        content = orjson.dumps(narrow.body("Wait", **LONG))
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        waiting.sendall(head.encode() + content)
        wait_for(lambda: narrow.load()["waiting"])
        with OpenAI(base_url=f"{narrow.url}/v1", api_key="x", max_retries=0) as client:
            for stream in (False, True):
                with pytest.raises(openai.RateLimitError):
                    client.chat.completions.create(
                        model="tiny", messages=[{"role": "user", "content": "Hi"}], stream=stream
                    )


# -- deadlines -------------------------------------------------------------------------------


def test_a_request_past_its_deadline_ends(start: Start) -> None:
    with start("server.request_timeout_seconds=0.5") as server:
        song = server.canary()
        began, cpu = time.monotonic(), server.cpu
        error = assert_envelope(server.post(server.body("Go", **LONG)), 504)
        assert time.monotonic() - began >= 0.5
        assert (error["type"], error["code"]) == ("timeout_error", "deadline_exceeded")
        server.wait_idle()

        with streaming(server) as lines:
            last = [line for line in lines if line][-2:]
        assert orjson.loads(last[0].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
        assert last[1] == "data: [DONE]"
        server.wait_idle()
        assert server.cpu - cpu < 6, "each of them would take more than ten"
        assert server.canary() == song


# -- slow readers ----------------------------------------------------------------------------


def slow_reader(server: ServerProcess, content: bytes) -> socket.socket:
    """Sends a request and reads nothing."""
    url = httpx.URL(server.url)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect((url.host, url.port or 80))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    slow.sendall(head.encode() + b"Connection: close\r\n\r\n" + content)
    return slow


def latency(server: ServerProcess, song: str) -> float:
    """The median of twenty short requests, for the machine may have other work."""
    found = []
    for _ in range(20):
        asked = time.monotonic()
        assert server.canary() == song
        found.append(time.monotonic() - asked)
    return statistics.median(found)


def test_slow_readers_hold_nobody(tiny: ServerProcess) -> None:
    """Eight streams, longer than all buffers, of which nobody reads a byte: they are computed to
    their end, others are served as before, and who reads after all gets the whole."""
    song, memory = tiny.canary(), tiny.memory
    alone = latency(tiny, song)
    fields = {"max_tokens": 500, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    content = orjson.dumps(tiny.body("A long story.", stream=True, **fields))
    with ExitStack() as open_sockets:
        slow = [open_sockets.enter_context(slow_reader(tiny, content)) for _ in range(8)]
        wait_for(lambda: tiny.load()["running"])
        tiny.wait_idle()
        assert latency(tiny, song) < 3 * alone + 0.1
        assert tiny.memory - memory < 128 << 20
        slow[7].settimeout(60)
        whole = bytearray()
        while part := slow[7].recv(1 << 20):
            whole += part
        assert len(whole) > 700_000 and whole.rstrip().endswith(b"data: [DONE]\n\n\r\n0")
    assert tiny.canary() == song


# -- keys ------------------------------------------------------------------------------------


def test_a_key_is_asked_for_everywhere_but_at_the_health_routes(start: Start) -> None:
    with start(f"auth.api_keys=other,{KEY}", "logging.level=debug") as server:
        refusals = set()
        for headers in (
            {},
            {"authorization": f"Bearer x{KEY}"},
            {"authorization": "Bearer"},
            {"authorization": f"Basic {KEY}"},
            {"authorization": KEY},
            {"x-api-key": KEY[:-1]},
            {"x-api-key": ""},
            {"authorization": "Bearer wrong", "x-api-key": KEY},
        ):
            for path in ("/v1/models", CHAT, "/openapi.json", "/version", "/no/such"):
                response = server.http.get(f"{server.url}{path}", headers=headers)
                error = assert_envelope(response, 401)
                assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
                refusals.add(response.content)
        assert len(refusals) == 1, "one path for all failures"
        assert_envelope(server.post(server.body("Hi", max_tokens=1)), 401)

        for headers in (
            {"authorization": f"Bearer {KEY}"},
            {"authorization": f"bearer  {KEY}"},
            {"x-api-key": KEY},
            {"authorization": "Bearer other"},
        ):
            assert server.http.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        for path in ("/health", "/health/live", "/health/ready"):
            assert server.http.get(f"{server.url}{path}").status_code == 200

        base_url = f"{server.url}/v1"
        with OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
            assert client.models.list().data
        with (
            OpenAI(base_url=base_url, api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


# -- the end ---------------------------------------------------------------------------------


def asking(
    pool: ThreadPoolExecutor, server: ServerProcess, fields: dict[str, Any]
) -> Future[httpx.Response]:
    """A whole answer that is asked for beside a stream of one row; it is being computed."""
    body = server.body("A long story.", **fields)
    found = pool.submit(httpx.post, f"{server.url}{CHAT}", json=body, timeout=60)
    wait_for(lambda: server.load()["running"] == 1 + fields["n"])
    return found


def test_running_answers_finish_after_a_sigterm(start: Start) -> None:
    """One that is streamed and one that is told whole."""
    with start("server.shutdown_grace_seconds=300") as server, ThreadPoolExecutor() as pool:
        body = server.body("A long story.", max_tokens=900, ignore_eos=True)
        whole = text_of(server.post(body).json())
        with streaming(server, max_tokens=900, n=1) as lines:
            beside = asking(pool, server, {**LONG, "max_tokens": 600, "n": 3})
            server.terminate()
            wait_for(lambda: not takes_connections(server))
            events = stream_events("\n".join(["data: {}", *lines]) + "\n")[1:]
        assert beside.result().json()["usage"]["completion_tokens"] == 1800
        assert server.wait(300) == 0
    choices = [event["choices"][0] for event in events]
    assert choices[-1]["finish_reason"] == "length"
    assert "".join(c["delta"].get("content", "") for c in choices) == whole


def test_an_idle_server_ends_at_once(start: Start) -> None:
    with start() as server:
        assert server.canary()
        server.terminate()
        wait_for(lambda: not server.running, 15)  # with somebody at work it would be 25 s
        assert server.wait() == 0


def test_a_second_signal_ends_at_once(start: Start) -> None:
    with start() as server, streaming(server):
        server.terminate()
        wait_for(lambda: not takes_connections(server))
        time.sleep(0.2)
        assert server.running
        server.terminate()
        wait_for(lambda: not server.running, 15)  # the grace is 25 s


def test_what_outlasts_the_grace_is_told_so(start: Start) -> None:
    with (
        start("server.shutdown_grace_seconds=1") as server,
        ThreadPoolExecutor() as pool,
        streaming(server, n=1) as lines,
    ):
        whole = asking(pool, server, {**LONG, "n": 7})
        began = time.monotonic()
        server.terminate()
        last = [line for line in lines if line][-2:]
        assert orjson.loads(last[0].removeprefix("data: "))["error"]["code"] == "unavailable"
        assert last[1] == "data: [DONE]"
        assert assert_envelope(whole.result(), 503)["code"] == "unavailable"
        assert server.wait() == 0
        assert 0.8 < time.monotonic() - began < 15


def test_an_interrupt_ends_as_a_sigterm_does(start: Start) -> None:
    with start() as server:
        psutil.Process(server.pid).send_signal(signal.SIGINT)
        assert server.wait() == 0


def takes_connections(server: ServerProcess) -> bool:
    url = httpx.URL(server.url)
    try:
        socket.create_connection((url.host, url.port or 80), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True
