"""Who comes to the port of a real server's group and does not belong there: each is refused, and
told why where it is a rank; the log and /health say so, and the server goes on serving."""

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from omlx_server.process.ports import next_free
from omlx_server.wiring.cluster.new_connections import MOST
from tests.api.harness import PATIENCE, ServerProcess, wait_for
from tests.cluster.servers import MODEL, ByHand, clustered, end
from tests.tiny_models import save_tiny

SECRET = "00ff" * 16  # a text as `openssl rand -hex 32` makes it
MANY = 200
WORDS = (b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff", b"\0")
SPARE = 8
"""Threads and descriptors that a server takes for other ends now and then."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("strangers")


@pytest.fixture(scope="module")
def models(tiny_models: Path, folder: Path) -> Path:
    """Models of the server's own, which a test may change."""
    shutil.copytree(tiny_models / MODEL, folder / "models" / MODEL)
    return folder / "models"


@pytest.fixture(scope="module")
def by_hand(models: Path, folder: Path) -> ByHand:
    port = next_free("127.0.0.1", 22_000)
    assert port is not None
    return ByHand(port, SECRET, models, folder)


@pytest.fixture(scope="module")
def server(models: Path, folder: Path, by_hand: ByHand) -> Iterator[ServerProcess]:
    """Its second rank is to be started by hand: it waits for it until a test does that."""
    sets = (f"cluster.secret={SECRET}", f"cluster.port={by_hand.port}")
    port = next_free("127.0.0.1", by_hand.port)
    assert port is not None
    server = clustered(models, folder / "server", *sets, port=port)
    server.url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: "the cluster's ranks are awaited at" in server.log)
        yield server
        server.stop()
    finally:
        end(server)


def rank_1(server: ServerProcess) -> dict[str, Any]:
    """What /health says of it."""
    found: dict[str, Any] = server.http.get(f"{server.url}/health").json()["cluster"][1]
    return found


def strangers(port: int) -> list[socket.socket]:
    """Many who say nothing, and some who say what nobody here understands."""
    found = [socket.create_connection(("127.0.0.1", port)) for _ in range(MANY)]
    for stranger, data in zip(found[-len(WORDS) :], WORDS, strict=True):
        stranger.sendall(data)
    return found


@contextmanager
def besieged(server: ServerProcess, port: int) -> Iterator[None]:
    """Many strangers are there during the block, and take few threads. After it the server has as
    many threads and descriptors as before."""
    process = psutil.Process(server.pid)
    threads, descriptors = process.num_threads() + SPARE, process.num_fds() + SPARE
    come = strangers(port)
    assert process.num_threads() <= threads + 2 * MOST
    yield
    for stranger in come:
        stranger.close()
    wait_for(lambda: process.num_threads() <= threads and process.num_fds() <= descriptors)


def refusal(by_hand: ByHand, secret: str = "") -> tuple[int, str]:
    """The exit code and the last words of a rank that is not taken."""
    with by_hand.rank(secret) as process:
        _, told = process.communicate(timeout=PATIENCE)
        return process.returncode, told


@contextmanager
def another_model(models: Path) -> Iterator[None]:
    """During the block there is another model where rank 0 found its own."""
    own, kept = models / MODEL, models / "kept"
    own.rename(kept)
    shutil.copytree(kept, own)
    config = json.loads((own / "config.json").read_text())
    save_tiny(own, "llama", vocab_size=config["vocab_size"], intermediate_size=64)
    yield
    shutil.rmtree(own)
    kept.rename(own)


def test_ranks_that_do_not_fit_are_refused(server: ServerProcess, by_hand: ByHand) -> None:
    """tests/wiring/cluster/test_gathering.py has those of other versions."""
    code, told = refusal(by_hand, secret="another text")
    assert code == 2 and "it does not know the secret of this cluster" in told
    assert "a rank at 127.0.0.1 is refused: it does not know the secret" in server.log
    assert rank_1(server)["status"] == "away"

    with another_model(by_hand.models):
        code, told = refusal(by_hand)
    assert code == 3 and "is another model than the org/tiny of rank 0" in told
    assert "is another model than the org/tiny of rank 0" in server.log
    assert rank_1(server)["status"] == "refused"
    assert "is another model" in rank_1(server)["problem"]


def test_among_strangers_the_right_rank_comes_and_the_server_serves(
    server: ServerProcess, by_hand: ByHand
) -> None:
    come = strangers(by_hand.port)
    with by_hand.rank() as right:
        server.wait_ready()
        for stranger in come:
            stranger.close()
        said = server.canary()
        with besieged(server, by_hand.port):
            assert server.canary() == said
        code, told = refusal(by_hand)
        assert code == 2 and "rank 0 refuses this rank: rank 1 is here already" in told
        assert "a rank at 127.0.0.1 is refused: rank 1 is here already" in server.log
        assert server.canary() == said
        assert rank_1(server)["status"] == "here"
        server.stop()
        assert right.wait(PATIENCE) == 3
        assert right.stderr is not None and "rank 0 ends" in right.stderr.read()
