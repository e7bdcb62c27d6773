"""A client that does harm, beside four streams of another one: `scripts/campaign hostile`.

It sends floods of 8 MB, conversations of 10,000 messages, grammars that go off late, bodies that
are wrong a million times, and resets the cache between them.

What counts: every hostile request gets an answer, none of it a 5xx; the streams say what they say
when nobody else is there. What is measured: the longest time between two tokens of a stream, the
slowest /health, and beside them the slowest first token, which waits for prompts of others.
"""

import itertools
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import orjson
import psutil

from omlx_server.text.encoding.low_priority import be_polite
from tests.api.harness import CHAT, Json, ServerProcess, serving

HONEST, HOSTILE = "key-of-the-streams", "key-of-the-hostile-one"
STREAMS = 4
MOST_GAP, MOST_HEALTH = 1.0, 0.5
"""Seconds: the goals."""
_HEALTH_PAUSE = 0.05
_NICE = 19
_AUTOGROUP = Path("/proc/self/autogroup")
_TOKENIZE, _COUNT, _PROBE = "/tokenize", "/v1/messages/count_tokens", "/v1/cache/probe"
_POLICIES = ("error", "truncate", "rolling")


@dataclass(frozen=True, slots=True)
class Load:
    """A flood has so many `bytes`, a crowd so many `messages`. Who does harm has `clients` requests
    on the way at once, and waits `patience` seconds for each. A stream has `tokens`. A context has
    `context` tokens, read in pieces of `chunk`: what a long prompt takes of the machine, whoever
    sends it, is another matter. On a slow CPU 512 tokens take two seconds. `every`: the one of so
    many floods and bombs that is sent."""

    bytes: int
    messages: int
    clients: int
    tokens: int
    patience: float
    chunk: int = 512
    context: int = 4096
    every: int = 1


TINY = Load(bytes=300_000, messages=2_000, clients=4, tokens=100, patience=60, every=3)
STARTER = Load(
    bytes=8_000_000,
    messages=9_999,
    clients=12,
    tokens=60,
    patience=600,
    chunk=64,
    context=768,
)


@dataclass(frozen=True, slots=True)
class Harm:
    """One hostile request. The body is made when it is sent: all of them are gigabytes."""

    name: str
    path: str
    body: Callable[[], bytes]


@dataclass(slots=True)
class Outcome:
    """`gaps` of each stream, `health` and `first` tokens: the longest, in seconds. `statuses` of
    hostile requests. `failed`: 5xx and what was never answered; `wrong`: streams that said
    something else. `stolen`: the seconds in which a virtual machine's processors were given to
    others; gaps tell little of the server where they are many."""

    asked: int = 0
    streamed: int = 0
    gaps: list[float] = field(default_factory=lambda: [0.0] * STREAMS)
    health: float = 0.0
    first: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    stolen: float = 0.0

    @property
    def is_right(self) -> bool:
        """What can be counted."""
        answered = sum(self.statuses.values()) == self.asked
        return answered and self.streamed >= STREAMS and not (self.failed or self.wrong)

    @property
    def is_smooth(self) -> bool:
        """What is measured: on a machine with nothing else to do."""
        return max(self.gaps) <= MOST_GAP and self.health <= MOST_HEALTH

    def __str__(self) -> str:
        statuses = ", ".join(f"{n} x {status}" for status, n in sorted(self.statuses.items()))
        gaps = " ".join(f"{gap:.2f}" for gap in self.gaps)
        return (
            f"{self.asked} hostile requests in {self.seconds:.0f} s: {statuses}; "
            f"{len(self.failed)} failed; {self.streamed} streams, {len(self.wrong)} wrong; "
            f"longest gaps {gaps} s, slowest /health {self.health:.2f} s, "
            f"slowest first token {self.first:.2f} s; "
            f"processors were away for {self.stolen:.1f} s"
        )


def campaign(
    model: str,
    settings: Sequence[str],
    directory: Path,
    load: Load,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    sets = (
        f"auth.api_keys={HONEST},{HOSTILE}",
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
            _do_harm(server, load, outcome, say)
        outcome.seconds = time.monotonic() - begun
        outcome.stolen = _stolen() - stolen
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
        self._threads = [*watchers, threading.Thread(target=self._look)]

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


_Answers: TypeAlias = "multiprocessing.Queue[_Answered | None]"


def _do_harm(
    server: ServerProcess, load: Load, outcome: Outcome, say: Callable[[str], None]
) -> None:
    """In a process of its own that is nice: elsewhere clients are other machines, and what the
    streams are heard with must not wait for it."""
    context = multiprocessing.get_context("spawn")
    answers: _Answers = context.Queue()
    child = context.Process(target=_harm, args=(server.url, server.model, load, answers))
    child.start()
    while (answered := answers.get()) is not None:
        _note(outcome, answered, say)
    child.join()


def _leave_the_processors() -> None:
    """To the server, which is of another session: Linux shares them between sessions first."""
    be_polite(_NICE)
    os.setsid()
    if _AUTOGROUP.exists():
        _AUTOGROUP.write_text(str(_NICE))


def _harm(url: str, model: str, load: Load, answers: _Answers) -> None:
    _leave_the_processors()
    harms, lock = all_harms(model, load), threading.Lock()

    def work() -> None:
        with _client(HOSTILE, load.patience) as http:
            while True:
                with lock:
                    harm = next(harms, None)
                if harm is None:
                    return
                answers.put(_sent(http, url, harm))

    try:
        with ThreadPoolExecutor(load.clients) as clients:
            for client in [clients.submit(work) for _ in range(load.clients)]:
                client.result()
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
    gaps = " ".join(f"{gap:.2f}" for gap in outcome.gaps)
    say(f"{name}: {found} in {seconds:.1f} s (gaps so far {gaps}, health {outcome.health:.2f})")


def all_harms(model: str, load: Load) -> Iterator[Harm]:
    """Resets come between the others."""
    floods = itertools.islice(_floods(model, load), None, None, load.every)
    bombs = itertools.islice(_bombs(model), None, None, load.every)
    kinds = [floods, _crowds(model, load), bombs, _wrong_bodies(model, load)]
    reset = Harm("reset", "/v1/cache/reset", lambda: b"{}")
    for number, harm in enumerate(itertools.chain(*kinds)):
        yield harm
        if number % 5 == 0:
            yield reset


def _floods(model: str, load: Load) -> Iterator[Harm]:
    """A single text of a kind that tokenizers are slow with."""
    parts = {
        "letters": "a",
        "any letters": "qwertyuiopasdfghjklzxcvbnm",
        "blanks": " ",
        "digits": "1234567890",
        "words": "the quick brown fox jumps over the lazy dog ",
        "emoji": "\N{GRINNING FACE}",
        "scripts": "世界你好",
        "control texts": "<|im_end|>",
        "quotes": '\\"',
    }
    for (name, part), (path, made) in itertools.product(parts.items(), _ROUTES.items()):
        text = part * (load.bytes // len(orjson.dumps(part)[1:-1]))
        yield Harm(f"{name} to {path}", path, partial(_dumped, made, model, text))


def _dumped(made: Callable[..., Json], *given: Any) -> bytes:
    return orjson.dumps(made(*given))


def _chat(model: str, text: str, **fields: Any) -> Json:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0, **fields}


_ROUTES: dict[str, Callable[[str, str], Json]] = {
    CHAT: _chat,
    _TOKENIZE: lambda model, text: {"model": model, "prompt": text},
    _COUNT: _chat,
    "/v1/completions": lambda model, text: {"model": model, "prompt": text, "max_tokens": 4},
    "/v1/responses": lambda model, text: {"model": model, "input": text, "max_output_tokens": 4},
}


def _crowds(model: str, load: Load) -> Iterator[Harm]:
    """So many messages that most have to go. Of the chats one for each policy is answered: what
    stays fills the context, and to read it is the model's own work."""
    turns: list[Json] = [
        {"role": ("user", "assistant")[number % 2], "content": f"What comes after {number}? " * 3}
        for number in range(load.messages // 2 * 2 - 1)
    ]
    asked = turns[:1] + [
        {"role": ("assistant", "tool")[number % 2], "content": "It rains.", "tool_call_id": "c"}
        for number in range(load.messages - 1)
    ]
    crowds = {"turns": turns, "results": asked}
    for policy, (kind, messages) in itertools.product(_POLICIES, crowds.items()):
        body = orjson.dumps(_chat(model, "") | {"messages": messages, "context_overflow": policy})
        yield Harm(f"{kind} under {policy}", _PROBE, partial(bytes, body))
        if kind == "turns":
            yield Harm(f"a chat of {kind} under {policy}", CHAT, partial(bytes, body))


def _bombs(model: str) -> Iterator[Harm]:
    """Grammars. Each ends as a 4xx or as an answer of its own, whatever its tokens take."""
    pattern = {"type": "string", "pattern": "(a|aa){1,2000}b"}
    nested: Json = pattern
    for _ in range(40):
        nested = {"type": "object", "properties": {"a": nested}, "required": ["a"]}
    inner: list[Json] = [{"type": "array", "items": {"$ref": f"#/$defs/{n}"}} for n in range(1999)]
    levels = [{"anyOf": [{"const": n}, one]} for n, one in enumerate([{"type": "null"}, *inner])]
    deep = {"$ref": "#/$defs/1999", "$defs": {str(n): one for n, one in enumerate(levels)}}
    schemas: dict[str, Json] = {
        "nested pattern": nested,
        "steps": {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"},
        "enum": {"enum": [f"{number:05}" * 40 for number in range(10_000)]},
        "2,000 times anyOf": deep,
        "counted": {"type": "string", "pattern": "^(.{0,500}x){0,500}$", "maxLength": 100_000},
        "many lists": {
            "type": "array",
            "items": {"anyOf": [{"type": "array", "minItems": n} for n in range(400)]},
        },
        "intersection": {
            "allOf": [{"type": "string", "pattern": f"a.{{{n},}}b"} for n in range(1, 40)]
        },
    }
    fields: dict[str, Json] = {f"schema {name}": {"guided_json": s} for name, s in schemas.items()}
    regexes = ["(x+x+){50}y", "(.*a){200}", "(a?){3000}a{3000}", r"(\w+\s?)*!{500}"]
    fields |= {f"regex {regex}": {"guided_regex": regex} for regex in regexes}
    grammars = [
        "start: a{1,1000} a{1,1000} a{1,1000}\na: /a+/",
        "start: start start | /[a-z]/ | ",
        'start: x\nx: x x x | "a" x | x "b" | /.*/',
        "start: " + " ".join(f"/[a-z]{{0,{n}}}/" for n in range(1, 300)),
    ]
    fields |= {f"grammar {g[:30]!r}": {"guided_grammar": g} for g in grammars}
    for name, wanted in fields.items():
        body = _chat(model, "Answer at length.") | wanted | {"max_tokens": 40, "temperature": 1}
        yield Harm(f"bomb {name}", CHAT, partial(orjson.dumps, body))


def _wrong_bodies(model: str, load: Load) -> Iterator[Harm]:
    """Each member of a list is a fault of its own, or nothing but structure."""
    many = load.bytes // 4
    wrong: dict[str, tuple[str, Callable[[], Json]]] = {
        "contents": (CHAT, lambda: {"messages": [{"role": "user", "content": [7.5] * many}]}),
        "prompts": ("/v1/completions", lambda: {"prompt": [7.5] * many}),
        "lists": (CHAT, lambda: {"messages": [], "x": [[]] * many}),
        "keys": (CHAT, lambda: {"logit_bias": {str(n): "x" for n in range(many // 4)}}),
        "parts": (CHAT, lambda: _chat(model, "") | {"messages": _parts(many // 8)}),
    }
    for name, (path, made) in wrong.items():
        yield Harm(f"wrong {name}", path, partial(_dumped, _named, model, made))


def _named(model: str, made: Callable[[], Json]) -> Json:
    return {"model": model, **made()}


def _parts(count: int) -> list[Json]:
    return [{"role": "user", "content": [{"type": "text", "text": "a"}] * count}]
