"""Clients that never pause: conversations that grow turn by turn, some of them as streams.

What is right to say was asked beforehand, one prompt at a time, of a server without a cache. The
history of a turn is always the right one, so that a wrong answer is counted once.
"""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase

import httpx

from tests.api.harness import CHAT, Json, ServerProcess, stream_events, text_of
from tests.campaigns.threads import Threads

_WORDS = "river stone winter garden letter silver window market bridge doctor summer".split()  # noqa: SIM905

ANSWER_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client sends, and what it must get."""

    messages: tuple[Json, ...]
    right: str


Conversation = tuple[Turn, ...]


@dataclass(slots=True)
class Tally:
    """What clients have seen. `wrong` and `errors` say what came, in a line each."""

    answers: int = 0
    cached: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __sub__(self, earlier: "Tally") -> "Tally":
        return Tally(
            self.answers - earlier.answers,
            self.cached - earlier.cached,
            self.wrong[len(earlier.wrong) :],
            self.errors[len(earlier.errors) :],
        )

    def __str__(self) -> str:
        wrong, errors = len(self.wrong), len(self.errors)
        return f"{self.answers:5} answers {wrong} wrong {errors} errors {self.cached:7} cached"


def opening(rng: random.Random) -> str:
    """One of two long beginnings, so that rows refer to what others have computed: shorter ones are
    copied."""
    return " ".join(random.Random(rng.randrange(2)).choices(ascii_lowercase, k=300))


def converse(
    oracle: ServerProcess, rng: random.Random, *, turns: int, words: int, tokens: int
) -> Conversation:
    """A conversation with right answers of `tokens` tokens; each question has about `words`."""
    history: tuple[Json, ...] = ({"role": "system", "content": opening(rng)},)
    done = []
    for _ in range(turns):
        history += ({"role": "user", "content": question(rng, words)},)
        answer = oracle.post(_body(oracle, history, tokens)).json()
        done.append(Turn(history, text_of(answer)))
        history += ({"role": "assistant", "content": done[-1].right},)
    return tuple(done)


class Traffic(Threads):
    """So many clients at once for one `with`; each takes one conversation after the other."""

    def __init__(
        self,
        server: ServerProcess,
        conversations: Sequence[Conversation],
        *,
        clients: int,
        tokens: int,
    ) -> None:
        super().__init__()
        self._server = server
        self._conversations = conversations
        self._tokens = tokens
        self._tally = Tally()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._talk, args=(random.Random(number), number % 2 > 0))
            for number in range(clients)
        ]

    def tally(self) -> Tally:
        """All clients so far."""
        with self._lock:
            seen = self._tally
            return Tally(seen.answers, seen.cached, list(seen.wrong), list(seen.errors))

    def _talk(self, rng: random.Random, streams: bool) -> None:
        with httpx.Client(timeout=ANSWER_SECONDS, trust_env=False) as http:
            while not self._done.is_set():
                for turn in rng.choice(self._conversations):
                    self.ask(http, turn, streams=streams)
                    if self._done.is_set():
                        break

    def ask(self, http: httpx.Client, turn: Turn, *, streams: bool) -> None:
        """Ask once, and note what came."""
        body = _body(self._server, turn.messages, self._tokens)
        try:
            text, usage = asked_once(http, self._server.url, body, streams=streams)
            cached = int(usage["prompt_tokens_details"]["cached_tokens"])
        except (httpx.HTTPError, AssertionError, KeyError, ValueError) as error:
            with self._lock:
                self._tally.errors.append(f"{type(error).__name__}: {error}"[:300])
            self._done.wait(0.1)
            return
        with self._lock:
            self._tally.answers += 1
            self._tally.cached += cached
            if text != turn.right:
                self._tally.wrong.append(f"{cached} cached: {text!r} for {turn.right!r}")


def asked_once(
    http: httpx.Client,
    url: str,
    body: Json,
    *,
    streams: bool,
    headers: Mapping[str, str] | None = None,
) -> tuple[str, Json]:
    """The text of an answer that ends by its length, and its usage. Raises httpx.HTTPError,
    AssertionError, KeyError or ValueError for anything else."""
    ask = _stream if streams else _whole
    return ask(http, f"{url}{CHAT}", body, headers or {})


def _whole(
    http: httpx.Client, url: str, body: Json, headers: Mapping[str, str]
) -> tuple[str, Json]:
    reply = http.post(url, json=body, headers=headers)
    assert reply.status_code == 200, f"{reply.status_code} {reply.text}"
    answer = reply.json()
    return text_of(answer), answer["usage"]


def _stream(
    http: httpx.Client, url: str, body: Json, headers: Mapping[str, str]
) -> tuple[str, Json]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    end, text = time.monotonic() + ANSWER_SECONDS, ""
    with http.stream("POST", url, json={**body, **options}, headers=headers) as reply:
        for part in reply.iter_text():
            text += part
            assert time.monotonic() < end, "a stream that does not end"  # pings keep it alive
    assert reply.status_code == 200, f"{reply.status_code} {text}"
    *events, last = stream_events(text)
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[-1]["finish_reason"] == "length", "the stream broke off"
    return "".join(choice["delta"].get("content") or "" for choice in choices), last["usage"]


def _body(server: ServerProcess, messages: tuple[Json, ...], tokens: int) -> Json:
    return {
        "model": server.model,
        "messages": messages,
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
    }


def question(rng: random.Random, words: int) -> str:
    """Words for a user to say: half of `words` to twice as many."""
    return " ".join(rng.choice(_WORDS) for _ in range(rng.randrange(words // 2, 2 * words)))
