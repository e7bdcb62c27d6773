"""Ranks that are killed and stopped under live traffic: `scripts/campaign cluster`.

A server of several ranks is harmed in each round, at work or while it starts anew: a rank, which
may be rank 0, gets SIGKILL, or SIGSTOP and later SIGCONT or SIGKILL. As a service manager would,
the campaign starts a server again whose rank 0 was killed. The right answers are those of one
process.
"""

import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import httpx

from tests.api.harness import ServerProcess
from tests.campaigns.cluster_clients import (
    LONGEST_SILENCE,
    Asked,
    Clients,
    Damage,
    Turn,
    ask,
    converse,
    silence,
)
from tests.campaigns.cluster_server import SupervisedServer

_TALKS, _TURNS, _TOKENS, _CLIENTS = 6, 4, 40, 4
_AGAIN_SECONDS = 120.0
_PAUSE_SECONDS = 0.1
_SHOWN = 300

Say = Callable[[str], None]


class Phase(StrEnum):
    """When a rank is harmed. All but the first are while the server starts anew, because another
    rank was killed."""

    AT_WORK = "at work"
    STARTING = "while ranks start"
    CONNECTING = "while they connect"
    LOADING = "while they load"


# The words in the log of rank 0 with which a phase begins.
_BEGINS = {
    Phase.STARTING: "ranks are awaited at",
    Phase.CONNECTING: " is here: ",
    Phase.LOADING: "ranks are connected",
}


@dataclass(frozen=True, slots=True)
class Harm:
    """What is done to a rank in a round, `after` so many seconds of its phase. A rank that was
    `stopped` goes on after so many seconds, or is killed then where it `dies`."""

    rank: int
    phase: Phase
    after: float = 0.0
    stopped: float = 0.0
    dies: bool = True

    def __str__(self) -> str:
        how = "killed"
        if self.stopped:
            how = f"stopped for {self.stopped:.1f} s{', then killed' if self.dies else ''}"
        return f"rank {self.rank} {how} {self.after:.2f} s {self.phase}"


def harms(count: int, size: int, seed: int) -> list[Harm]:
    """Random harm in so many rounds to a server of `size` ranks."""
    rng = random.Random(seed)
    made = list[Harm]()
    for _ in range(count):
        phase = rng.choice([Phase.AT_WORK, *Phase])
        after = rng.uniform(0.0, 6.0 if phase is Phase.AT_WORK else 0.4)
        stopped = rng.uniform(1.0, 9.0) if rng.random() < 0.5 else 0.0
        dies = not stopped or rng.random() < 0.5
        made.append(Harm(rng.randrange(size), phase, after, stopped, dies))
    return made


@dataclass(slots=True)
class Outcome:
    """What a campaign gave. `seconds`: of each round, how long it took until the server served
    again. `silence`: the longest that a client had, and whose it was. `cold`: tokens of prompts
    that came from cold tiers. `left`: how many processes were there at the end."""

    answers: int = 0
    errors: int = 0
    seconds: list[float] = field(default_factory=list)
    silence: tuple[float, str] = (0.0, "")
    cold: int = 0
    left: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return bool(self.answers and self.cold and not self.left and not self.problems)

    def note(self, name: str, asked: Asked, seconds: float) -> None:
        """Take in the longest silence of a client."""
        what = f"{name}: {asked.error or 'then it went on'}"[:_SHOWN]
        self.silence = max(self.silence, (seconds, what))
        if seconds > LONGEST_SILENCE:
            self.problems.append(f"nothing was heard for {seconds:.1f} s: {what}")

    def __str__(self) -> str:
        silence, whose = self.silence
        median, most = statistics.median(self.seconds or [0]), max(self.seconds, default=0)
        return (
            f"{len(self.seconds)} rounds, {self.answers} answers, {self.errors} errors, "
            f"{len(self.problems)} problems; it served again after {median:.1f} s (median), "
            f"{most:.1f} s (most); the longest silence {silence:.1f} s ({whose}); "
            f"{self.cold} prompt tokens from cold tiers; {self.left} processes left"
        )


def campaign(
    model: str,
    settings: Sequence[str],
    directory: Path,
    rounds: Sequence[Harm],
    *,
    size: int = 3,
    seed: int = 1,
    say: Say = lambda _: None,
) -> Outcome:
    """Run these rounds over `size` ranks."""
    talks = _talks(model, settings, directory, seed)
    outcome, damages = Outcome(), list[Damage]()
    server = SupervisedServer(model, settings, directory / "cluster", size)
    try:
        server.wait_ready()
        with Clients(server.url, talks, _CLIENTS) as clients:
            for harm in rounds:
                damage = _Round(server, harm, size, talks[0][0]).run()
                damages.append(damage)
                outcome.seconds.append(damage.end - damage.harmed)
                outcome.cold += server.cold_tokens()
                say(f"{harm}: served again after {outcome.seconds[-1]:.1f} s")
        server.stop()
    finally:
        outcome.left = server.kill()
    _judge(outcome, clients, damages, server.starts)
    outcome.problems += server.problems
    return outcome


def _talks(
    model: str, settings: Sequence[str], directory: Path, seed: int
) -> list[tuple[Turn, ...]]:
    """Conversations with the right answers, which one process gives without a cache."""
    rng = random.Random(seed)
    oracle = ServerProcess(model, directory / "one", [*settings, "cache.enabled=false"])
    try:
        oracle.wait_ready()
        return [converse(oracle, rng, turns=_TURNS, tokens=_TOKENS) for _ in range(_TALKS)]
    finally:
        oracle.kill()


def _judge(
    outcome: Outcome,
    clients: Clients,
    damages: Sequence[Damage],
    starts: Sequence[tuple[float, float]],
) -> None:
    """Note what clients heard that is wrong, and silences of more than 10 seconds."""
    heard = clients.heard
    outcome.answers, outcome.errors = heard.answers, len(heard.asked) - heard.answers
    outcome.problems += [f"wrong: {each}"[:_SHOWN] for each in heard.wrong]
    seconds = silence(clients.health, damages, starts)
    outcome.note("/health", clients.health, seconds)
    for asked in heard.asked:
        outcome.note("a request", asked, silence(asked, damages))


class _Round:
    """One round: `harm` is done, then `turn` is asked until its right answer comes."""

    def __init__(self, server: SupervisedServer, harm: Harm, size: int, turn: Turn) -> None:
        self._server = server
        self._harm = harm
        self._size = size
        self._turn = turn

    def run(self) -> Damage:
        first = self._wait_for_phase()
        begin = time.monotonic()
        self._do()
        over, is_rank_0 = time.monotonic(), self._harm.rank == 0
        stopped = (begin, over) if is_rank_0 else (begin, begin)
        return Damage(min(first, begin), stopped, over if is_rank_0 else begin, self._served())

    def _wait_for_phase(self) -> float:
        """Wait for the moment of the harm. Returns when a rank was killed for it, if one was."""
        harm, first = self._harm, float("inf")
        if harm.phase is not Phase.AT_WORK:
            mark, first = self._server.mark, time.monotonic()
            self._server.kill_rank((harm.rank + 1) % self._size)
            count = self._size - 1 if harm.phase is Phase.CONNECTING else 1
            self._server.wait_for_lines(_BEGINS[harm.phase], count, mark)
        time.sleep(harm.after)
        return first

    def _do(self) -> None:
        harm = self._harm
        if harm.stopped:
            process = self._server.process_of(harm.rank)
            self._server.signal_rank(process, signal.SIGSTOP)
            time.sleep(harm.stopped)
            if not harm.dies:
                self._server.signal_rank(process, signal.SIGCONT)
                return
            if harm.rank:  # which may have been replaced meanwhile
                self._server.signal_rank(process, signal.SIGKILL)
                return
        self._server.kill_rank(harm.rank)

    def _served(self) -> float:
        """When an answer to a question came that was asked after the harm."""
        end = time.monotonic() + _AGAIN_SECONDS
        with httpx.Client(timeout=_AGAIN_SECONDS, trust_env=False) as http:
            while True:
                asked = ask(http, self._server.url, self._turn, streams=False)
                if not asked.error:
                    return asked.times[-1]
                assert asked.times[-1] < end, f"{self._harm}: it serves no more: {asked.error}"
                time.sleep(_PAUSE_SECONDS)
