"""The bounds of connections as they come, on the real server: sizes, seconds, memory."""

import socket
import time
from functools import partial
from pathlib import Path

import httpx
import orjson

from tests.api.harness import CHAT, UNPROBED, ServerProcess, assert_envelope, serving, wait_for

HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
MOST = 64 << 20


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


def test_halves_are_dropped_within_thirty_seconds(tiny: ServerProcess) -> None:
    song, memory, began = tiny.canary(), tiny.memory, time.monotonic()
    body = orjson.dumps(tiny.body("Hi"))
    half = b"Content-Length: %d\r\n\r\n%b" % (len(body), body[:-9])
    streams = [connected(tiny, HEAD) for _ in range(200)]
    streams += [connected(tiny, HEAD + half) for _ in range(50)]
    try:
        assert not any(closed(stream) for stream in streams)
        while streams:
            assert tiny.canary() == song
            assert time.monotonic() - began < 30
            gone = [stream for stream in streams if closed(stream)]
            assert not gone or time.monotonic() - began > 9
            for stream in gone:
                stream.close()
            streams = [stream for stream in streams if stream not in gone]
            time.sleep(0.4)
    finally:
        for stream in streams:
            stream.close()
    assert tiny.memory - memory < MOST
    assert tiny.load()["running"] == 0


def test_the_settings_reach_the_connections(tiny_models: Path, tmp_path: Path) -> None:
    seconds = [f"server.{name}_timeout_seconds=0.5" for name in ("header", "body", "write")]
    sets = (f"models.dirs={tiny_models}", UNPROBED, "server.max_header_bytes=2KiB", *seconds)
    with serving("tiny", tmp_path, *sets) as server:
        response = server.http.get(f"{server.url}/v1/models", headers={"x-large": "v" * 3000})
        assert_envelope(response, 431)
        for start in (HEAD, HEAD + b"Content-Length: 9\r\n\r\n{"):
            with connected(server, start) as stream:
                wait_for(partial(closed, stream), 9)  # 10 s are the default
        fields = {"max_tokens": 4000, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
        body = orjson.dumps(server.body("A long story.", stream=True, **fields))
        with connected(server, HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)) as slow:
            wait_for(lambda: server.load()["running"])
            server.wait_idle()
            slow.settimeout(60)
            whole = bytearray()
            while part := slow.recv(1 << 20):
                whole += part
        assert b"[DONE]" not in whole
