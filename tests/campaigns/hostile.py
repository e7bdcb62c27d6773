"""A client that does harm, beside four streams of another one: `scripts/campaign hostile`.

It sends what is large, wrong and slow (hostile_requests.py), then takes what is scarce
(hostile_presses.py).

What counts: every hostile request gets an answer, none of it a 5xx but a 503 where something is
scarce; no other request fails; the streams say what they say when nobody else is there; nothing is
held afterwards. What is measured: the longest time between two tokens of a stream, the slowest
/health, the slowest chat of one token, and the slowest first token of a stream, which may wait for
prompts of others.
"""

import itertools
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import httpx
import orjson
import psutil

from omlx_server.text.encoding.low_priority import be_polite
from tests.api.harness import CHAT, ServerProcess, serving
from tests.campaigns.alone import forking
from tests.campaigns.hostile_presses import Found, Target, press
from tests.campaigns.hostile_requests import STARTER, TINY, Harm, Load, all_harms
from tests.campaigns.overload import blocks_of, held_by

__all__ = ["STARTER", "TINY", "Load", "campaign"]

HONEST, CHATTING, HOSTILE = "key-of-the-streams", "key-of-the-chat", "key-of-the-hostile-one"
STREAMS = 4
_FAILURES = (500, 502, 504)
MOST_GAP, MOST_HEALTH, MOST_CHAT = 1.0, 0.5, 5.0
"""Seconds: the goals."""
_HEALTH_PAUSE, _CHAT_PAUSE = 0.05, 0.5
_NICE = 19
_AUTOGROUP = Path("/proc/self/autogroup")


@dataclass(slots=True)
class Outcome:
    """`gaps` of each stream, `health`, `first` tokens and the others' `chat` of one token: the
    longest, in seconds. `statuses` of hostile requests, and what was `pressed`. `failed`: 5xx and
    what was never answered; `wrong`: streams that said something else; `held`: what is not given
    back in the end. `stolen`: the seconds in which a virtual machine's processors were given to
    others; gaps tell little of the server where they are many."""

    asked: int = 0
    streamed: int = 0
    gaps: list[float] = field(default_factory=lambda: [0.0] * STREAMS)
    health: float = 0.0
    first: float = 0.0
    chat: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    pressed: dict[str, Found] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    seconds: float = 0.0
    stolen: float = 0.0

    @property
    def is_right(self) -> bool:
        """What can be counted."""
        answered = sum(self.statuses.values()) == self.asked
        wrong = self.failed or self.wrong or self.held
        return answered and self.streamed >= STREAMS and bool(self.pressed) and not wrong

    @property
    def is_smooth(self) -> bool:
        """What is measured: on a machine with nothing else to do."""
        is_quick = self.health <= MOST_HEALTH and self.chat <= MOST_CHAT
        return max(self.gaps) <= MOST_GAP and is_quick

    def __str__(self) -> str:
        statuses = ", ".join(f"{n} x {status}" for status, n in sorted(self.statuses.items()))
        gaps = " ".join(f"{gap:.2f}" for gap in self.gaps)
        return (
            f"{self.asked} hostile requests in {self.seconds:.0f} s: {statuses}; "
            f"{len(self.failed)} failed; {self.streamed} streams, {len(self.wrong)} wrong; "
            f"longest gaps {gaps} s, slowest /health {self.health:.2f} s, "
            f"slowest chat of one token {self.chat:.2f} s, first token {self.first:.2f} s; "
            f"{len(self.held)} things held; "
            f"processors were away for {self.stolen:.1f} s"
        )


def campaign(
    model: str,
    settings: Sequence[str],
    directory: Path,
    load: Load,
    *,
    seeing: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """`seeing`: a model that takes images; none are sent without one."""
    sets = (
        f"auth.api_keys={HONEST},{CHATTING},{HOSTILE}",
        f"scheduler.prefill_chunk_tokens={load.chunk}",
        *settings,
    )
    config = f'[models.overrides."{model}"]\ncontext_length = {load.context}\n'
    outcome = Outcome()
    with serving(model, directory, *sets, config=config) as server:
        streams = _Streams(server, load, outcome)
        streams.ask_alone()
        begun, stolen = time.monotonic(), _stolen()
        with streams:
            _do_harm(server, seeing, load, outcome, say)
        outcome.seconds = time.monotonic() - begun
        outcome.stolen = _stolen() - stolen
        server.wait_idle()
        outcome.held = blocks_of(server) + held_by(server)
    return outcome


def _stolen() -> float:
    """Seconds of all processors together since the machine began; 0 where that is not told."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


@dataclass(frozen=True, slots=True)
class _Told:
    """A whole answer, the seconds to its first text, and the longest between two of its texts."""

    text: str
    first: float = 0.0
    gap: float = 0.0


# --- The streams, and who looks whether the server lives ------------------------------------------


class _Streams:
    """They go on for one `with`, one answer after the other."""

    def __init__(self, server: ServerProcess, load: Load, outcome: Outcome) -> None:
        self._server = server
        self._load = load
        self._outcome = outcome
        self._right: list[str] = []
        self._done = threading.Event()
        self._lock = threading.Lock()
        watchers = [threading.Thread(target=self._stream, args=(n,)) for n in range(STREAMS)]
        lookers = [threading.Thread(target=look) for look in (self._look, self._chat)]
        self._threads = [*watchers, *lookers]

    def ask_alone(self) -> None:
        """What they say when nobody else is there."""
        with _client(HONEST, self._load.patience) as http:
            self._right = [self._told(http, number).text for number in range(STREAMS)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _stream(self, number: int) -> None:
        with _client(HONEST, self._load.patience) as http:
            while not self._done.is_set():
                try:
                    told = self._told(http, number)
                except (httpx.HTTPError, AssertionError, KeyError, ValueError) as error:
                    told = _Told(f"{type(error).__name__}: {error}"[:200])
                with self._lock:
                    self._note(number, told)

    def _note(self, number: int, told: "_Told") -> None:
        outcome, right = self._outcome, self._right[number]
        outcome.streamed += 1
        outcome.gaps[number] = max(outcome.gaps[number], told.gap)
        outcome.first = max(outcome.first, told.first)
        if told.text != right:
            outcome.wrong.append(f"{told.text!r} for {right!r}")

    def _told(self, http: httpx.Client, number: int) -> "_Told":
        # Never an end before the last token: it has no text, so it is no event.
        length = {"max_tokens": self._load.tokens, "min_tokens": self._load.tokens}
        body = self._server.body(f"Count from {number} on.", stream=True)
        times, texts = [time.monotonic()], []
        with http.stream("POST", f"{self._server.url}{CHAT}", json=body | length) as reply:
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                delta = orjson.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                if delta.get("content"):
                    times.append(time.monotonic())
                    texts.append(delta["content"])
        assert reply.status_code == 200, reply.status_code
        first, *gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
        return _Told("".join(texts), first, max(gaps, default=0.0))

    def _look(self) -> None:
        with _client(HONEST, self._load.patience) as http:
            while not self._done.wait(_HEALTH_PAUSE):
                begun = time.monotonic()
                status = http.get(f"{self._server.url}/health").status_code
                self._outcome.health = max(self._outcome.health, time.monotonic() - begun)
                if status != 200:
                    self._outcome.failed.append(f"/health: {status}")

    def _chat(self) -> None:
        with _client(CHATTING, self._load.patience) as http:
            body, number = self._server.body("", max_tokens=1), 0
            while not self._done.wait(_CHAT_PAUSE):
                number += 1
                body["messages"] = [{"role": "user", "content": f"{number} and on?"}]
                begun = time.monotonic()
                status = http.post(f"{self._server.url}{CHAT}", json=body).status_code
                self._outcome.chat = max(self._outcome.chat, time.monotonic() - begun)
                if status != 200:
                    self._outcome.failed.append(f"a chat of one token: {status}")


def _client(key: str, patience: float) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return httpx.Client(timeout=patience, trust_env=False, headers=headers)


# --- The harm -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Answered:
    """`status`: or why there is none."""

    name: str
    status: int | str
    seconds: float


@dataclass(frozen=True, slots=True)
class _Pressed:
    name: str
    found: Found


_Answers: TypeAlias = "multiprocessing.Queue[_Answered | _Pressed | None]"


def _do_harm(
    server: ServerProcess,
    seeing: str,
    load: Load,
    outcome: Outcome,
    say: Callable[[str], None],
) -> None:
    """In a process of its own that may be nice: elsewhere clients are other machines, and what the
    streams are heard with must not wait for it."""
    context = forking()
    answers: _Answers = context.Queue()
    target = Target(server.url, server.model, seeing, HOSTILE)
    child = context.Process(target=_harm, args=(target, load, answers))
    child.start()
    while (answered := answers.get()) is not None:
        if isinstance(answered, _Pressed):
            _note_press(outcome, answered, say)
        else:
            _note(outcome, answered, say)
    child.join()


def _leave_the_processors() -> None:
    """To the server, which is of another session: Linux shares them between sessions first."""
    be_polite(_NICE)
    os.setsid()
    if _AUTOGROUP.exists():
        _AUTOGROUP.write_text(str(_NICE))


def _harm(target: Target, load: Load, answers: _Answers) -> None:
    if load.gives_way:
        _leave_the_processors()
    harms, lock = all_harms(target.model, load), threading.Lock()

    def work() -> None:
        with _client(HOSTILE, load.patience) as http:
            while True:
                with lock:
                    harm = next(harms, None)
                if harm is None:
                    return
                answers.put(_sent(http, target.url, harm))

    try:
        with ThreadPoolExecutor(load.clients) as clients:
            for client in [clients.submit(work) for _ in range(load.clients)]:
                client.result()
        for name, found in press(target, load.presses):
            answers.put(_Pressed(name, found))
    finally:
        answers.put(None)


def _sent(http: httpx.Client, url: str, harm: Harm) -> _Answered:
    content, begun = harm.body(), time.monotonic()
    try:
        status: int | str = http.post(f"{url}{harm.path}", content=content).status_code
    except httpx.HTTPError as error:
        status = type(error).__name__
    return _Answered(harm.name, status, time.monotonic() - begun)


def _note(outcome: Outcome, answered: _Answered, say: Callable[[str], None]) -> None:
    name, found, seconds = answered.name, answered.status, answered.seconds
    outcome.asked += 1
    outcome.slowest[name] = max(seconds, outcome.slowest.get(name, 0.0))
    if isinstance(found, int):
        outcome.statuses[found] += 1
    if isinstance(found, str) or found >= 500:
        outcome.failed.append(f"{name}: {found} after {seconds:.0f} s")
    say(f"{name}: {found} in {seconds:.1f} s ({_so_far(outcome)})")


def _note_press(outcome: Outcome, pressed: _Pressed, say: Callable[[str], None]) -> None:
    name, found = pressed.name, pressed.found
    outcome.pressed[name] = found
    wrong = [status for status in found if isinstance(status, int) and status in _FAILURES]
    outcome.failed += [f"{name}: {found[status]} x {status}" for status in wrong]
    told = ", ".join(f"{n} x {status}" for status, n in found.items())
    say(f"{name}: {told} ({_so_far(outcome)})")


def _so_far(outcome: Outcome) -> str:
    gaps = " ".join(f"{gap:.2f}" for gap in outcome.gaps)
    return f"gaps so far {gaps}, health {outcome.health:.2f}, chat {outcome.chat:.2f}"
