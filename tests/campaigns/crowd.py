"""Clients that want all that there is at once, a third of whom leave: for `overload`.

Each request is noted from when it is sent: what it waits for its first token, how long it heard
nothing but keep-alives, how it ended.
"""

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import httpx
import orjson

from tests.api.harness import CHAT, Json

KEYS = ("key-of-one", "key-of-two")
_WORDS = "river stone winter garden letter silver window market bridge doctor summer".split()  # noqa: SIM905
_LEAVES = 1 / 3
_REFUSED = (429, 503)
LONGEST_WAIT = "x-omlx-longest-wait"
_SCHEMA: Json = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "rooms": {"type": "integer"}},
    "required": ["name", "rooms"],
    "additionalProperties": False,
}
_TOOL: Json = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks a house up.", "parameters": _SCHEMA},
}
# What an answer must look like. Most are free.
_FORMS: tuple[Json, ...] = (
    {},
    {},
    {},
    {"guided_json": _SCHEMA},
    {"guided_choice": ["the river", "the garden", "the winter"]},
    {"guided_regex": "[a-z]{3,9}( [a-z]{3,9}){2,6}"},
    {"response_format": {"type": "json_object"}},
    {"tools": [_TOOL]},
    {"tools": [_TOOL], "tool_choice": "required"},
)


@dataclass(frozen=True, slots=True)
class Demand:
    """What clients ask for: prompts of `least` to `most` words, as many of 30 to 60 as of 3,000 to
    6,000; those above `mid` and `long` words are called so. One that leaves does so within `stay`
    seconds; of an answer there are at most `tokens`. Whoever hears nothing for `patience` seconds
    gives up."""

    least: int
    mid: int
    long: int
    most: int
    tokens: int
    stay: float
    patience: float

    def draw(self, rng: random.Random) -> int:
        """How many words a prompt has."""
        return round(math.exp(rng.uniform(math.log(self.least), math.log(self.most))))

    def name(self, words: int) -> str:
        return "long" if words > self.long else "mid" if words > self.mid else "short"


@dataclass(slots=True, eq=False)
class Asked:
    """One request. Times are time.monotonic(); `silent` is the longest time without an event, and
    `told` how many seconds it was told that it would wait at most."""

    size: str
    key: str
    streams: bool
    choices: int
    priority: int
    sent: float = 0.0
    heard: float = 0.0
    first: float | None = None
    ended: float | None = None
    silent: float = 0.0
    told: float = 0.0

    def __str__(self) -> str:
        kind = "stream" if self.streams else "whole"
        return f"{self.size} {kind} of {self.key}, n {self.choices}, priority {self.priority}"

    def hear(self) -> None:
        """Something of the answer has come."""
        now = time.monotonic()
        self.silent = max(self.silent, now - self.heard)
        self.heard = now
        self.first = self.first or now


@dataclass(slots=True)
class Seen:
    """What came of all requests that were `sent`: those that were answered, those that left or were
    refused by status, and `failed` ones, in a line each."""

    sent: list[Asked] = field(default_factory=list)
    answered: list[Asked] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    left: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def open(self) -> list[Asked]:
        """Those that have no end yet."""
        return [one for one in self.sent if one.ended is None]


class Crowd:
    """`clients` threads for one `with`; each asks one thing after the other."""

    def __init__(self, url: str, model: str, demand: Demand, clients: int, seed: int) -> None:
        self._url = url
        self._model = model
        self._demand = demand
        rng = random.Random(seed)
        self._beginnings = [words_of(rng, demand.most) for _ in range(4)]
        self.seen = Seen()
        self.lock = threading.Lock()
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(random.Random(seed * 1000 + number),))
            for number in range(clients)
        ]

    def __enter__(self) -> "Crowd":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody asks any more; who has asked gets an answer."""
        self._done.set()
        for thread in self._threads:
            thread.join()

    # -- one client ----------------------------------------------------------------------

    def _ask_on(self, rng: random.Random) -> None:
        while not self._done.is_set():
            words = self._demand.draw(rng)
            body = self._body(rng, words)
            choices, priority = body["n"], body.get("priority", 0)
            size, key = self._demand.name(words), rng.choice(KEYS)
            asked = Asked(size, key, body["stream"], choices, priority)
            stay = rng.uniform(0, self._demand.stay) if rng.random() < _LEAVES else None
            asked.sent = asked.heard = time.monotonic()
            with self.lock:
                self.seen.sent.append(asked)
            end = self._end(asked, body, stay)
            asked.ended = time.monotonic()
            asked.silent = max(asked.silent, asked.ended - asked.heard)
            with self.lock:
                self._note(asked, end)
            self._done.wait(rng.uniform(0.0, 1.0) if end in _REFUSED else rng.uniform(0.0, 0.1))

    def _end(self, asked: Asked, body: Json, stay: float | None) -> str | int:
        """The status of a refusal, "left", "" for an answer, or what is wrong with it."""
        patience = self._demand.patience if stay is None else stay
        headers = {"authorization": f"Bearer {asked.key}"}
        timeout = httpx.Timeout(self._demand.patience, read=max(patience, 0.01))
        try:
            with (
                httpx.Client(timeout=timeout, trust_env=False, headers=headers) as http,
                http.stream("POST", f"{self._url}{CHAT}", json=body) as reply,
            ):
                if reply.status_code != 200:
                    return _refusal(reply)
                asked.told = float(reply.headers.get(LONGEST_WAIT, 0))
                if not asked.streams:
                    reply.read()
                    asked.hear()
                    return _whole(reply.json(), body)
                return self._listen(asked, reply, body, asked.sent + patience)
        except httpx.TimeoutException:
            return "left" if stay is not None else "silence"
        except (httpx.HTTPError, KeyError, ValueError) as error:
            return f"{type(error).__name__}: {error}"[:200]

    def _listen(self, asked: Asked, reply: httpx.Response, body: Json, until: float) -> str:
        """Keep-alives are no events. Who leaves does so while it hears something, too."""
        stays = until - asked.sent >= self._demand.patience
        finished, last = set[int](), ""
        for line in reply.iter_lines():
            if time.monotonic() > (asked.heard + self._demand.patience if stays else until):
                return "silence" if stays else "left"
            if not line.startswith("data: "):
                continue
            asked.hear()
            last = line.removeprefix("data: ")
            if last == "[DONE]":
                break
            event = orjson.loads(last)
            if "error" in event:
                return _error(event["error"])
            finished |= {choice["index"] for choice in event["choices"] if choice["finish_reason"]}
        wanted = set(range(body["n"]))
        return "" if (finished, last) == (wanted, "[DONE]") else f"a stream ended with {last[:80]}"

    def _note(self, asked: Asked, end: str | int) -> None:
        seen = self.seen
        if isinstance(end, int):
            seen.refused[end] += 1
        elif end == "left":
            seen.left += 1
        elif end == "":
            seen.answered.append(asked)
        elif end in _PROPER:
            seen.errors[end] += 1
            seen.answered.append(asked)
        else:
            seen.failed.append(f"{asked} after {time.monotonic() - asked.sent:.0f} s: {end}")

    def _body(self, rng: random.Random, count: int) -> Json:
        begun = rng.choice(self._beginnings)[: count * rng.choice((0, 1, 3)) // 4]
        text = " ".join((*begun, *words_of(rng, count - len(begun))))
        body: Json = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": rng.randint(4, self._demand.tokens),
            "temperature": rng.choice((0, 1)),
            "seed": rng.randrange(1 << 30),
            "n": rng.choice((1, 1, 1, 2, 4)),
            "stream": rng.random() < 0.7,
            **rng.choice(_FORMS),
        }
        return body | ({"priority": rng.choice((-1, 0, 1))} if rng.random() < 0.3 else {})


# Ends that a server may have for a request that it took: its grammar, or the memory.
_PROPER = frozenset({"grammar_too_complex", "insufficient_memory"})


def _refusal(reply: httpx.Response) -> int | str:
    """A refusal says when to come back, or that it could never fit."""
    reply.read()
    if reply.status_code in _REFUSED and "retry-after" in reply.headers:
        return reply.status_code
    try:
        return _error(reply.json()["error"])
    except (ValueError, KeyError):
        return f"{reply.status_code} without an error"


def _error(error: Json) -> str:
    code = str(error.get("code") or "")
    return code if code in _PROPER else f"{error.get('type')} {code}: {error.get('message')}"[:200]


def _whole(answer: Json, body: Json) -> str:
    ends = [choice["finish_reason"] for choice in answer["choices"]]
    return "" if len(ends) == body["n"] and all(ends) else f"an answer with the ends {ends}"


def words_of(rng: random.Random, count: int) -> list[str]:
    return [rng.choice(_WORDS) for _ in range(count)]


def waits(asked: Sequence[Asked]) -> Iterator[tuple[str, str, bool, float]]:
    """Class, key, whether it was a stream, seconds to the first token (of a stream) or the end."""
    for one in asked:
        end = one.first if one.streams and one.first is not None else one.ended
        assert end is not None
        yield one.size, one.key, one.streams, end - one.sent
