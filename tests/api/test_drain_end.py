"""SIGTERM while a model drains: somebody has asked to unload it, and a stream still uses it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
import pytest

from tests.api.harness import CHAT, ServerProcess, assert_envelope, stream_events, wait_for
from tests.api.small_models import order, save, sets, states


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("drain")
    save(root / "org" / "a", "llama", max_position_embeddings=100_000)
    return root


@contextmanager
def draining(
    directory: Path, place: Path, tokens: int, grace: int
) -> Iterator[tuple[ServerProcess, list[str], list[httpx.Response]]]:
    """A server that was told to unload its model and then to end, while a stream runs. What the
    stream and the order give stands in the lists when they have ended."""
    own = [*sets(directory), f"server.shutdown_grace_seconds={grace}"]
    server = ServerProcess("org/a", place, own)
    texts: list[str] = []
    orders: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: texts.append(stream(server, tokens))),
        threading.Thread(target=lambda: orders.append(order(server, "unload", "a"))),
    ]
    try:
        server.wait_ready()
        threads[0].start()
        wait_for(lambda: server.load()["running"] == 1)
        threads[1].start()
        wait_for(lambda: states(server)["org/a"] == "unloading")
        server.terminate()
        yield server, texts, orders
        for thread in threads:
            thread.join(60)
    finally:
        server.kill()


def stream(server: ServerProcess, tokens: int) -> str:
    body = server.body("Count.", max_tokens=tokens, ignore_eos=True, stream=True)
    with httpx.Client(timeout=60, trust_env=False) as http:
        try:
            with http.stream("POST", f"{server.url}{CHAT}", json=body) as answer:
                return "".join(answer.iter_text())
        except httpx.HTTPError as error:
            return f"cut: {error!r}"


def test_the_stream_ends_whole_within_the_grace(directory: Path, tmp_path: Path) -> None:
    with draining(directory, tmp_path, tokens=300, grace=120) as (server, texts, orders):
        assert server.wait() == 0, server.log
        wait_for(lambda: texts and orders)
    last = stream_events(texts[0])[-1]
    assert last["choices"][0]["finish_reason"] == "length", texts[0][-500:]
    assert orders[0].status_code in (200, 503), orders[0].text
    assert "Traceback" not in server.log


def test_a_stream_that_takes_longer_is_told_why_it_ends(directory: Path, tmp_path: Path) -> None:
    with draining(directory, tmp_path, tokens=90_000, grace=1) as (server, texts, orders):
        began = time.monotonic()
        assert server.wait() == 0, server.log
        assert time.monotonic() - began < 1 + 20  # the stream alone would take minutes
        wait_for(lambda: texts and orders)
    blocks = [block for block in texts[0].split("\n\n") if block.startswith("data: {")]
    assert "shutting down" in orjson.loads(blocks[-1].removeprefix("data: "))["error"]["message"]
    assert_envelope(orders[0], 503)
    assert "Traceback" not in server.log
