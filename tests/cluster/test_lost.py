"""A rank that is killed or stopped: answers end with an error, the server begins anew in the same
process at the same port, and answers as before from its cold tiers."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from tests.api.harness import PATIENCE, ServerProcess, cached, samples, text_of, wait_for
from tests.campaigns.cluster import Harm, Phase, campaign
from tests.cluster.servers import clustered, end, ranks

STORY = "Once upon a time a rank was lost in the middle of a sentence. " * 3
MOST_SECONDS = 10.0


@pytest.fixture(scope="module")
def server(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sets = ("cache.block_tokens=16", "cache.cold_write_through=true")
    server = clustered(tiny_models, tmp_path_factory.mktemp("lost"), *sets)
    try:
        server.wait_ready()
        yield server
        server.stop()
    finally:
        end(server)


def streamed_until(server: ServerProcess, number: signal.Signals, victim: int) -> tuple[str, float]:
    """What a stream says whose rank gets this signal after the first event, and how many seconds
    later it ended."""
    body = server.body("Go on.", max_tokens=3500, ignore_eos=True, stream=True)
    text = ""
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as reply:
        lines = reply.iter_lines()
        text += next(lines)
        os.kill(victim, number)
        at = time.monotonic()
        for line in lines:
            text += line + "\n"
    return text, time.monotonic() - at


def health(server: ServerProcess) -> httpx.Response | None:
    """None while nobody answers."""
    try:
        return httpx.get(f"{server.url}/health", timeout=PATIENCE)
    except httpx.HTTPError:
        return None


@contextmanager
def health_watched(server: ServerProcess) -> Iterator[list[httpx.Response]]:
    """What /health answers during the block."""
    told, is_over = list[httpx.Response](), Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            told.extend(filter(None, [health(server)]))

    thread = Thread(target=watch)
    thread.start()
    try:
        yield told
    finally:
        is_over.set()
        thread.join()


def tell_of_the_loss(told: list[httpx.Response], problem: str) -> bool:
    """Whether one of these answers of /health is a 503 that says which rank is lost, and why."""
    of_rank = [reply.json()["cluster"][1] for reply in told if reply.status_code == 503]
    return any(each["status"] == "lost" and problem in each["problem"] for each in of_rank)


def restarts(server: ServerProcess) -> float:
    return samples(httpx.get(f"{server.url}/metrics").text)["omlx_cluster_restarts_total"]


@pytest.mark.parametrize(
    ("number", "problem"),
    [(signal.SIGKILL, "the connection was closed"), (signal.SIGSTOP, "no sign of life for 5 s")],
    ids=["SIGKILL", "SIGSTOP"],
)
def test_the_server_outlives_a_rank(
    server: ServerProcess, number: signal.Signals, problem: str
) -> None:
    right = text_of(server.chat(STORY, max_tokens=8, ignore_eos=True))
    before = restarts(server)
    victim = ranks(server)[0]
    with health_watched(server) as told:
        text, seconds = streamed_until(server, number, victim.pid)
        assert '"error"' in text and "rank 1" in text and "is lost" in text
        assert seconds < MOST_SECONDS
        wait_for(lambda: tell_of_the_loss(told, problem))
        wait_for(lambda: told[-1].status_code == 200)
    assert restarts(server) == before + 1
    again = server.chat(STORY, max_tokens=8, ignore_eos=True)
    assert server.running and text_of(again) == right
    assert cached(again) >= 128, "the blocks on disk were not found again"
    wait_for(lambda: not victim.is_running())  # not even as a zombie


def test_ranks_may_end_at_any_moment(tiny_models: Path, tmp_path: Path) -> None:
    """The short form of `scripts/campaign cluster`: rank 0 is killed first."""
    rounds = [Harm(1, Phase.LOADING)]
    outcome = campaign("org/tiny", [f"models.dirs={tiny_models}"], tmp_path, rounds, size=2)
    assert outcome.answers and not (outcome.problems or outcome.left), str(outcome.problems[:3])
