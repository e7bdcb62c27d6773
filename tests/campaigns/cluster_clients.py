"""Clients of a server that is about to break: conversations that grow, greedy and seeded, half of
them as streams; and the times at which each of them heard something.

What is right to say was asked of one process beforehand. The history of a turn is always the right
one.
"""

import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import httpx

from tests.api.harness import CHAT, Json, ServerProcess, text_of
from tests.campaigns.threads import Threads
from tests.campaigns.traffic import opening, question

LONGEST_SILENCE = 10.0
"""Seconds after which a client that has heard nothing counts as one that hangs."""

_ANSWER_SECONDS = 180.0
_PAUSE_SECONDS = 0.2
_DATA = "data: "


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client sends, and what it must get."""

    body: Json
    right: str


def converse(
    oracle: ServerProcess, rng: random.Random, *, turns: int, tokens: int
) -> tuple[Turn, ...]:
    """A conversation with right answers of `tokens` tokens, every second one with a seed."""
    history: list[Json] = [{"role": "system", "content": opening(rng)}]
    done = list[Turn]()
    for number in range(turns):
        history = [*history, {"role": "user", "content": question(rng, 8)}]
        how = {"temperature": 1.0, "seed": rng.randrange(99)} if number % 2 else {"temperature": 0}
        body = {"model": oracle.model, "messages": history, "max_tokens": tokens, **how}
        body["ignore_eos"] = True
        done.append(Turn(body, text_of(oracle.post(body).json())))
        history = [*history, {"role": "assistant", "content": done[-1].right}]
    return tuple(done)


@dataclass(slots=True)
class Asked:
    """One request. `times` are those of time.monotonic() at which it was sent, heard something and
    ended. `error` is "" where the whole answer came."""

    times: list[float]
    text: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done to a server in a round, in times of time.monotonic(): a rank was killed or
    stopped `first`; rank 0 was `stopped` from one time to another, and with it the server; all was
    `harmed` then, and it served again at `end`."""

    first: float
    stopped: tuple[float, float]
    harmed: float
    end: float

    def excuses(self, asked: Asked, start: float, stop: float) -> float:
        """Of the seconds between two times at which a client heard something, those for which the
        server can't be blamed. Who asked after the harm has to wait for the new start."""
        if asked.times[0] > self.first:
            return _overlap(start, stop, self.first, self.end)
        return _overlap(start, stop, *self.stopped)


def silence(
    asked: Asked, damages: Sequence[Damage], starts: Sequence[tuple[float, float]] = ()
) -> float:
    """The most seconds for which a client heard nothing and the server is to blame. `starts`: from
    when to when its process was being started."""
    return max(
        stop
        - start
        - sum(damage.excuses(asked, start, stop) for damage in damages)
        - sum(_overlap(start, stop, *one) for one in starts)
        for start, stop in pairwise(asked.times)
    )


def _overlap(start: float, stop: float, first: float, last: float) -> float:
    return max(0.0, min(stop, last) - max(start, first))


def ask(http: httpx.Client, url: str, turn: Turn, *, streams: bool) -> Asked:
    """Ask once. What goes wrong is the `error` of what comes back."""
    asked = Asked([time.monotonic()])
    try:
        if streams:
            _stream(http, url, turn.body, asked)
        else:
            reply = http.post(f"{url}{CHAT}", json=turn.body)
            if reply.status_code == 200:
                asked.text = text_of(reply.json())
            else:
                asked.error = f"{reply.status_code} {reply.text}"
    except httpx.HTTPError as error:
        asked.error = f"{type(error).__name__}: {error}"
    asked.times.append(time.monotonic())
    return asked


def _stream(http: httpx.Client, url: str, body: Json, asked: Asked) -> None:
    asked.error = "the stream broke off"
    with http.stream("POST", f"{url}{CHAT}", json={**body, "stream": True}) as reply:
        for line in reply.iter_lines():
            if reply.status_code != 200:
                asked.error = f"{reply.status_code} {line}"
            if not line.startswith(_DATA):
                continue
            asked.times.append(time.monotonic())
            if line == f"{_DATA}[DONE]":
                continue
            event = json.loads(line.removeprefix(_DATA))
            if "error" in event:
                asked.error = str(event["error"]["message"])
                return
            for choice in event["choices"]:
                asked.text += choice["delta"].get("content") or ""
                if choice["finish_reason"] == "length":
                    asked.error = ""


@dataclass(slots=True)
class Heard:
    """What all clients heard. `wrong`: answers, or their beginnings, that are not right."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def note(self, asked: Asked, turn: Turn) -> None:
        self.asked.append(asked)
        self.answers += not asked.error
        right = turn.right if not asked.error else turn.right[: len(asked.text)]
        if asked.text != right:
            self.wrong.append(f"{asked.text!r} for {right!r} ({asked.error or 'a whole answer'})")


class Clients(Threads):
    """So many clients at once for one `with`, which never pause, and one who asks for /health all
    the time."""

    def __init__(self, url: str, talks: Sequence[Sequence[Turn]], count: int) -> None:
        super().__init__()
        self._url = url
        self._talks = talks
        self._lock = threading.Lock()
        self.heard = Heard()
        self.health = Asked([])
        """When /health answered, whatever it said."""
        self._threads = [threading.Thread(target=self._watch)]
        self._threads += [threading.Thread(target=self._talk, args=(n,)) for n in range(count)]

    def _talk(self, number: int) -> None:
        rng = random.Random(number)
        with httpx.Client(timeout=_ANSWER_SECONDS, trust_env=False) as http:
            while not self._done.is_set():
                for turn in rng.choice(self._talks):
                    asked = ask(http, self._url, turn, streams=number % 2 == 0)
                    with self._lock:
                        self.heard.note(asked, turn)
                    if asked.error:
                        self._done.wait(_PAUSE_SECONDS)
                    if self._done.is_set():
                        return

    def _watch(self) -> None:
        with httpx.Client(timeout=_ANSWER_SECONDS, trust_env=False) as http:
            while not self._done.wait(_PAUSE_SECONDS):
                try:
                    http.get(f"{self._url}/health")
                except httpx.ConnectError:
                    pass  # its process was killed, and nobody listens there
                except httpx.HTTPError:
                    continue
                self.health.times.append(time.monotonic())
