"""A rank that is killed or stopped: answers end with an error, the server begins anew in the same
process at the same port, and answers as before from its cold tiers."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.harness import PATIENCE, ServerProcess, cached, text_of, wait_for
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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda each: each.name)
def test_the_server_outlives_a_rank(server: ServerProcess, number: signal.Signals) -> None:
    right = text_of(server.chat(STORY, max_tokens=8, ignore_eos=True))
    victim = ranks(server)[0]
    text, seconds = streamed_until(server, number, victim.pid)
    assert '"error"' in text and "rank 1" in text and "is lost" in text
    assert seconds < MOST_SECONDS
    sick = health(server)
    assert sick is None or sick.status_code == 503
    wait_for(lambda: (found := health(server)) and found.status_code == 200)
    again = server.chat(STORY, max_tokens=8, ignore_eos=True)
    assert server.running and text_of(again) == right
    assert cached(again) >= 128, "the blocks on disk were not found again"
    wait_for(lambda: not victim.is_running())  # not even as a zombie


def test_ranks_may_end_at_any_moment(tiny_models: Path, tmp_path: Path) -> None:
    """The short form of `scripts/campaign cluster`: in both rounds rank 0 is killed first."""
    rounds = [Harm(1, Phase.STARTING), Harm(1, Phase.LOADING)]
    outcome = campaign("org/tiny", [f"models.dirs={tiny_models}"], tmp_path, rounds, size=2)
    assert outcome.is_right, f"{outcome} {outcome.problems[:3]}"
