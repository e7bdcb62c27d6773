"""The bounds of connections as they come, on the real server: sizes, seconds, memory."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import orjson
import pytest

from tests.api.harness import CHAT, UNPROBED, ServerProcess, assert_envelope, serving, wait_for

HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
MOST = 64 << 20
SHORT = 0.5


def connected(server: ServerProcess, start: bytes) -> socket.socket:
    url = httpx.URL(server.url)
    stream = socket.create_connection((url.host, url.port or 80), timeout=60)
    stream.sendall(start)
    return stream


def closed(stream: socket.socket) -> bool:
    """Whether the server has ended this connection; what it said before is passed over."""
    stream.setblocking(False)
    try:
        while stream.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_headers_may_have_sixteen_kibibytes(tiny: ServerProcess) -> None:
    fits = tiny.http.get(f"{tiny.url}/v1/models", headers={"x-large": "v" * 15_000})
    assert fits.status_code == 200
    for headers in ({"x-large": "v" * 17_000}, {f"x-{i}": "v" for i in range(2000)}):
        began = time.monotonic()
        response = tiny.http.get(f"{tiny.url}/v1/models", headers=headers)
        assert assert_envelope(response, 431)["code"] == "headers_too_large"
        assert time.monotonic() - began < 9, "only the time limit of heads ended it"


def test_headers_without_an_end_take_no_memory(tiny: ServerProcess) -> None:
    song, memory = tiny.canary(), tiny.memory
    for _ in range(200):
        with connected(tiny, HEAD + b"X: ") as stream:
            try:
                for _ in range(20):
                    stream.sendall(b"v" * 50_000)
            except (BrokenPipeError, ConnectionResetError):
                pass
    assert tiny.memory - memory < MOST
    assert tiny.canary() == song


def test_prompts_beyond_the_context_take_no_memory(tiny: ServerProcess) -> None:
    """One after the other: what one takes is free for the next."""
    tiny.post(tiny.body("7" * 8_000_000))
    memory = tiny.memory
    for stream in (False, True):
        for _ in range(4):
            before = tiny.cpu
            error = assert_envelope(tiny.post(tiny.body("7 " * 4_000_000, stream=stream)), 400)
            assert error["code"] == "context_length_exceeded"
            assert tiny.cpu - before < 1
    assert tiny.memory - memory < MOST


@pytest.fixture(scope="module")
def hasty(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Waits for SHORT seconds; by default it would be ten."""
    seconds = [f"server.{name}_timeout_seconds={SHORT}" for name in ("header", "body", "write")]
    sets = (f"models.dirs={tiny_models}", UNPROBED, "server.max_header_bytes=2KiB", *seconds)
    with serving("tiny", tmp_path_factory.mktemp("hasty"), *sets) as server:
        yield server


def test_halves_are_dropped(hasty: ServerProcess) -> None:
    """Each when its time is over, and not before."""
    song, memory = hasty.canary(), hasty.memory
    body = orjson.dumps(hasty.body("Hi"))
    half = b"Content-Length: %d\r\n\r\n%b" % (len(body), body[:-9])
    began = dict[socket.socket, float]()
    with ExitStack() as streams:
        for start in [HEAD] * 200 + [HEAD + half] * 50:
            at = time.monotonic()
            began[streams.enter_context(connected(hasty, start))] = at
        last = time.monotonic()
        while began:
            assert hasty.canary() == song
            assert time.monotonic() - last < 9
            for stream in [stream for stream in began if closed(stream)]:
                assert time.monotonic() - began.pop(stream) > 0.9 * SHORT
    assert hasty.memory - memory < MOST
    assert hasty.load()["running"] == 0


def test_the_settings_reach_the_connections(hasty: ServerProcess) -> None:
    response = hasty.http.get(f"{hasty.url}/v1/models", headers={"x-large": "v" * 3000})
    assert_envelope(response, 431)
    for start in (HEAD, HEAD + b"Content-Length: 9\r\n\r\n{"):
        with connected(hasty, start) as stream:
            wait_for(partial(closed, stream), 9)
    fields = {"max_tokens": 4000, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    body = orjson.dumps(hasty.body("A long story.", stream=True, **fields))
    with connected(hasty, HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)) as slow:
        wait_for(lambda: hasty.load()["running"])
        hasty.wait_idle()
        slow.settimeout(60)
        whole = bytearray()
        while part := slow.recv(1 << 20):
            whole += part
    assert b"[DONE]" not in whole
