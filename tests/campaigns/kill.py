"""kill -9 while blocks are written, a start, the same questions: `scripts/campaign kill`.

Conversations grow over all rounds, so each start finds files of the rounds before it, some of them
torn. Right answers come from a server that has no cold tier.
"""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.api.harness import ServerProcess, text_of
from tests.campaigns.traffic import opening

_WORDS = "river stone winter garden letter silver window market bridge doctor summer".split()  # noqa: SIM905
_CLIENTS = 3
_TOKENS = 8


@dataclass
class Outcome:
    """What a campaign gave. `cached` prompt tokens came from blocks of a killed process."""

    rounds: int = 0
    answers: int = 0
    wrong: int = 0
    failed_starts: int = 0
    cached: int = 0


def campaign(
    model: str,
    settings: Sequence[str],
    directory: Path,
    rounds: int,
    *,
    seconds: float = 0.6,
    seed: int = 1,
) -> Outcome:
    """Run it; each server is killed within `seconds` of its first new question. Blocks are written
    as they are computed."""
    rng = random.Random(seed)
    outcome = Outcome()
    asked: list[str] = []
    right: dict[str, str] = {}
    oracle = ServerProcess(model, directory / "oracle", [*settings, "cache.enabled=false"])
    try:
        oracle.wait_ready()
        for _ in range(rounds):
            outcome.rounds += 1
            asked += [_question(rng) for _ in range(4)]
            right |= {text: _answer(oracle, text) for text in asked if text not in right}
            life = rng.uniform(0.01, seconds)
            _round(model, settings, directory, asked, right, life, outcome)
            asked = asked[-12:]
    finally:
        oracle.kill()
    return outcome


def _round(
    model: str,
    settings: Sequence[str],
    directory: Path,
    asked: list[str],
    right: dict[str, str],
    life: float,
    outcome: Outcome,
) -> None:
    """One life of a server: what it says of the past, then questions until it is killed."""
    server = ServerProcess(
        model,
        directory / "killed",
        [*settings, "cache.cold_write_through=true", "cache.hot_cache_max_bytes=64MiB"],
    )
    try:
        try:
            server.wait_ready()
        except AssertionError:
            outcome.failed_starts += 1
            return
        for text in asked[:-4]:
            answer = server.chat(text, max_tokens=_TOKENS, ignore_eos=True)
            outcome.cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            _compare(text_of(answer), right[text], outcome)
        clients = [
            threading.Thread(target=_ask_until_killed, args=(server, asked, right, outcome, i))
            for i in range(_CLIENTS)
        ]
        for client in clients:
            client.start()
        if outcome.rounds == 1:
            _wait_for_one(outcome, clients)
        time.sleep(life)
        server.kill()
        for client in clients:
            client.join()
    finally:
        server.kill()


def _wait_for_one(outcome: Outcome, clients: list[threading.Thread]) -> None:
    """An answer, however slow the machine may be."""
    while not outcome.answers and any(client.is_alive() for client in clients):
        time.sleep(0.01)


def _ask_until_killed(
    server: ServerProcess, asked: list[str], right: dict[str, str], outcome: Outcome, number: int
) -> None:
    with httpx.Client(timeout=60, trust_env=False) as http:
        for turn in range(1000):
            text = asked[-1 - (turn + number) % min(4, len(asked))]
            body = server.body(text, max_tokens=_TOKENS, ignore_eos=True)
            try:
                reply = http.post(f"{server.url}/v1/chat/completions", json=body)
            except httpx.HTTPError:
                return  # killed
            _compare(text_of(reply.json()), right[text], outcome)


def _compare(text: str, right: str, outcome: Outcome) -> None:
    outcome.answers += 1
    outcome.wrong += text != right


def _answer(oracle: ServerProcess, text: str) -> str:
    return text_of(oracle.chat(text, max_tokens=_TOKENS, ignore_eos=True))


def _question(rng: random.Random) -> str:
    own = (rng.choice(_WORDS) for _ in range(rng.randrange(30, 90)))
    return " ".join([opening(rng), *own])
