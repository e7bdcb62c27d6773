"""More than a server can do, then silence: `scripts/campaign overload`.

24 clients with two keys ask for prompts of all lengths, several choices, grammars and tools, with
priorities; a third of them leave at any moment. Memory, hot and cold tier and the queue are small.

What counts: whoever was taken hears a first token within the time that it was told, and gets an
end; afterwards nothing is held, the engine never had to start over, and greedy texts are what they
were before.
"""

import math
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.api.harness import (
    ADMIN_TOKEN,
    Json,
    ServerProcess,
    busy,
    samples,
    serving,
    text_of,
    wait_for,
)
from tests.campaigns.crowd import KEYS, LONGEST_WAIT, Asked, Crowd, Demand, Seen, waits, words_of

_ADMIN = {"x-admin-token": ADMIN_TOKEN}
_EMPTY_SECONDS = 2.0
_HELD = ("live", "step")
_TOLD = ("live", "blocks", "checkpoints", "pending", "pool")
_QUESTIONS = 4
_MOST_PROMPTS = 20


@dataclass(frozen=True, slots=True)
class Load:
    """`clients` for so many `seconds`. The watcher looks every `every` seconds. Greedy texts have
    `tokens`."""

    seconds: float
    clients: int
    demand: Demand
    sets: Sequence[str]
    every: float = 15.0
    tokens: int = 24


STARTER = Load(
    seconds=240.0,
    clients=24,
    demand=Demand(
        least=30,
        mid=200,
        long=1500,
        most=6000,
        tokens=60,
        stay=30.0,
        patience=900.0,
    ),
    sets=(
        "memory.limit=1100MB",
        "cache.hot_cache_max_bytes=30MB",
        "cache.cold_cache_max_bytes=60MB",
        "scheduler.max_queue=24",
    ),
)
# A token of its model is a byte, and its context is short.
TINY = Load(
    seconds=8.0,
    clients=12,
    demand=Demand(
        least=1,
        mid=20,
        long=150,
        most=450,
        tokens=30,
        stay=2.0,
        patience=60.0,
    ),
    sets=(
        "memory.limit=10MB",
        "memory.activation_reserve=64KB",
        "cache.hot_cache_max_bytes=500KB",
        "cache.cold_cache_max_bytes=1MB",
        "cache.cold_write_queue_bytes=200KB",
        "scheduler.max_queue=6",
        "scheduler.prefill_chunk_tokens=128",
    ),
    every=2.0,
)


@dataclass(slots=True)
class Outcome:
    """`late` are those that heard nothing for longer than they were told, times aside in which a
    better class came later and waited; `held` what was still there two seconds after the last end;
    `changed` greedy texts that are others now."""

    seen: Seen = field(default_factory=Seen)
    late: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    stalls: int = 0
    preempted: int = 0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """All that is judged."""
        wrong = self.seen.failed or self.late or self.held or self.changed or self.stalls
        return bool(self.seen.answered) and not wrong

    def __str__(self) -> str:
        seen = self.seen
        refused = ", ".join(f"{n} x {status}" for status, n in sorted(seen.refused.items()))
        errors = ", ".join(f"{n} x {code}" for code, n in sorted(seen.errors.items()))
        return "\n".join(
            (
                *_table(seen.answered),
                f"{len(seen.answered)} ended ({errors or 'no errors'}), {seen.left} left, "
                f"{sum(seen.refused.values())} refused ({refused or 'nobody'}) in "
                f"{self.seconds:.0f} s; {len(seen.failed)} failed, {len(self.late)} later than "
                f"told ({_most_used(seen):.0%} of it at most), "
                f"{len(self.held)} things held afterwards, {len(self.changed)} texts changed, "
                f"{self.preempted} preempted, {self.stalls} standstills",
            )
        )

    @property
    def problems(self) -> list[str]:
        return [*self.seen.failed, *self.late, *self.held, *self.changed]


def campaign(
    model: str,
    settings: Sequence[str],
    directory: Path,
    load: Load,
    *,
    seed: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """One overload of one server, and the silence after it."""
    sets = (f"auth.api_keys={','.join(KEYS)}", *load.sets, *settings)
    with serving(model, directory, *sets) as server:
        _wait_for_the_pace(server, load, seed)
        before = _texts(server, load)
        crowd = Crowd(server.url, server.model, load.demand, load.clients, seed)
        outcome = Outcome(crowd.seen)
        begun = time.monotonic()
        with _Watcher(server, crowd, load.every, say):
            with crowd:
                time.sleep(load.seconds)
            say(f"all have an end after {time.monotonic() - begun:.0f} s")
        outcome.seconds = time.monotonic() - begun
        outcome.late = _late(crowd.seen)
        outcome.held = held_by(server)
        outcome.changed = _changed(before, _texts(server, load))
        outcome.held += blocks_of(server)
        outcome.changed += _changed(before, _texts(server, load))
        told = _metrics(server)
        outcome.stalls = int(
            sum(n for name, n in told.items() if name.startswith("omlx_stalls_total"))
        )
        outcome.preempted = int(told["vllm:num_preemptions_total"])
    return outcome


def _wait_for_the_pace(server: ServerProcess, load: Load, seed: int) -> None:
    """Before it is known nobody is told how long it will wait. Of a key that was not there of late
    nothing is known: both are."""
    rng = random.Random(seed)
    for number in range(_MOST_PROMPTS):
        key = KEYS[number % len(KEYS)]
        body = server.body(" ".join(words_of(rng, load.demand.long)), max_tokens=1)
        told = LONGEST_WAIT in server.post(body, authorization=f"Bearer {key}").headers
        if told and number >= len(KEYS) - 1:
            return
    raise AssertionError(f"nothing was told after {_MOST_PROMPTS} prompts")


# --- What is judged -------------------------------------------------------------------------------


def _late(seen: Seen) -> list[str]:
    return [
        f"{one} heard nothing for {one.silent:.0f} s, was told {one.told:.0f}, and had "
        f"{passed:.0f} s of a better class before it"
        for one in seen.answered
        if _used(one, passed := _passed(one, seen.sent)) > 1
    ]


def _used(one: Asked, passed: float) -> float:
    """Which part of its time it heard nothing: of what it was told, and of what was not promised. A
    whole answer says nothing before its end, which may take as long again."""
    told = one.told if one.streams else 2 * one.told
    return one.silent / (told + passed) if told else math.inf


def _passed(one: Asked, sent: Sequence[Asked]) -> float:
    """Seconds in which those of a better class who came later waited as well: they go first."""
    until, seconds, reached = one.first or one.ended or one.sent, 0.0, one.sent
    for other in sorted(sent, key=lambda other: other.sent):
        end = min(other.first or other.ended or until, until)
        if other.priority < one.priority and other.sent > one.sent and end > reached:
            seconds += end - max(other.sent, reached)
            reached = end
    return seconds


def _most_used(seen: Seen) -> float:
    return max((_used(one, _passed(one, seen.sent)) for one in seen.answered), default=0.0)


def held_by(server: ServerProcess) -> list[str]:
    """What is not given back within two seconds."""
    end = time.monotonic() + _EMPTY_SECONDS
    while (held := _account(server)) and time.monotonic() < end:
        time.sleep(0.1)
    return held


def _account(server: ServerProcess) -> list[str]:
    health = _health(server)
    there = [f"{name}: {health['memory'][name]} bytes" for name in _HELD if health["memory"][name]]
    sequences = sum(busy(engine) for engine in health["engines"])
    return there + ([f"{sequences} sequences"] if sequences else [])


def blocks_of(server: ServerProcess) -> list[str]:
    """A reset drops all that nobody uses: what stays then is leased for ever."""
    server.http.post(f"{server.url}/v1/cache/reset", headers=_ADMIN).raise_for_status()

    def dropped() -> bool:
        memory = _health(server)["memory"]
        return not (memory["blocks"] or memory["checkpoints"])

    try:
        wait_for(dropped, _EMPTY_SECONDS)
    except AssertionError:
        return [f"blocks after a reset: {_health(server)['memory']['blocks']} bytes"]
    return []


def _texts(server: ServerProcess, load: Load) -> list[str]:
    """Greedy answers, one after the other."""
    fields = {"max_tokens": load.tokens, "ignore_eos": True}
    key = f"Bearer {KEYS[0]}"
    bodies = [server.body(f"Count from {n} on.", **fields) for n in range(_QUESTIONS)]
    return [text_of(server.post(body, authorization=key).json()) for body in bodies]


def _changed(before: Sequence[str], after: Sequence[str]) -> list[str]:
    pairs = zip(before, after, strict=True)
    return [f"{new!r} for {old!r}" for old, new in pairs if old != new]


def _table(answered: Sequence[Asked]) -> list[str]:
    """Seconds to the first token of streams and to the end of whole answers."""
    rows = defaultdict[tuple[str, str, bool], list[float]](list)
    for size, key, streams, seconds in waits(answered):
        rows[size, key, streams].append(seconds)
    lines = [f"{'prompt':8}{'key':14}{'until':14}{'count':>6}{'p50':>8}{'max':>8}"]
    for (size, key, streams), found in sorted(rows.items()):
        until = "first token" if streams else "whole answer"
        half, most = statistics.median(found), max(found)
        lines.append(f"{size:8}{key:14}{until:14}{len(found):6}{half:8.1f}{most:8.1f}")
    return lines


# --- Who looks ------------------------------------------------------------------------------------


class _Watcher:
    """Says for one `with` what waits for what, in a line."""

    def __init__(
        self, server: ServerProcess, crowd: Crowd, every: float, say: Callable[[str], None]
    ) -> None:
        self._server = server
        self._crowd = crowd
        self._every = every
        self._say = say
        self._begun = time.monotonic()
        self._cpu = server.cpu
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look_on)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._done.wait(self._every):
            try:
                self._say(self._line())
            except (httpx.HTTPError, KeyError, ValueError) as error:
                self._say(f"the watcher has no answer: {type(error).__name__}")

    def _line(self) -> str:
        health, told = _health(self._server), _metrics(self._server)
        [engine], memory = health["engines"], health["memory"]
        cpu, before = self._server.cpu, self._cpu
        self._cpu = cpu
        relief = {name.split('"')[1]: n for name, n in told.items() if "relief_total" in name}
        reliefs = ", ".join(f"{name} {n:.0f}" for name, n in relief.items() if n)
        held = ", ".join(f"{name} {memory[name] / 1e6:.1f} MB" for name in _TOLD if memory[name])
        stalls = int(sum(n for name, n in told.items() if name.startswith("omlx_stalls_total")))
        return (
            f"{time.monotonic() - self._begun:4.0f} s: {engine['waiting']} wait, "
            f"{engine['prefilling']} are read, {engine['running']} written; {self._clients()}; "
            f"{held}; relief {reliefs or 'none'}; standstills {stalls}; {cpu - before:.0f} s of CPU"
        )

    def _clients(self) -> str:
        """Who has sent something: still without a word, and who has waited longest."""
        now, crowd = time.monotonic(), self._crowd
        with crowd.lock:
            silent = [one for one in crowd.seen.open if one.first is None]
            ended, left = len(crowd.seen.answered), crowd.seen.left
            refused, failed = sum(crowd.seen.refused.values()), len(crowd.seen.failed)
            heard = sum(one.first is not None for one in crowd.seen.open)
        oldest = min(silent, key=lambda one: one.sent, default=None)
        longest = f" (longest: {oldest}, {now - oldest.sent:.0f} s)" if oldest else ""
        return (
            f"clients: {len(silent)} without a token{longest}, {heard} hear some, {ended} ended, "
            f"{left} left, {refused} refused, {failed} failed"
        )


def _health(server: ServerProcess) -> Json:
    with httpx.Client(timeout=60, trust_env=False, headers=_ADMIN) as http:
        told: Json = http.get(f"{server.url}/health").json()
    return told


def _metrics(server: ServerProcess) -> dict[str, float]:
    with httpx.Client(timeout=60, trust_env=False, headers=_ADMIN) as http:
        return samples(http.get(f"{server.url}/metrics").raise_for_status().text)
