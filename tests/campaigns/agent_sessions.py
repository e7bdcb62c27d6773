"""Sessions of agents: one long system prompt for all, and conversations that grow turn by turn.

What is right to say is learned from one server. The history of a turn is always the right one, so
that every pass sends the same requests, in about the same order, and a wrong answer is counted
once.
"""

import random
import threading
import time
import uuid
from dataclasses import dataclass, field

import httpx

from tests.api.harness import Json
from tests.campaigns.traffic import ANSWER_SECONDS, asked_once, question

_TRIES = 3
_PAUSE_SECONDS = 0.1
_LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class Load:
    """`sessions` of `turns` turns each, kept up by `clients` that ask at the same time. A client
    gives each of its sessions a turn before any of them has the next one. A question has about
    `words` words, the system prompt `system`, and an answer has `tokens` tokens."""

    sessions: int
    turns: int
    clients: int
    system: int
    words: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a client finds a model: a server, or a router in front of several."""

    url: str
    model: str
    key: str


@dataclass(slots=True, eq=False)
class Asked:
    """One request, `sent` at a time.monotonic(). `error` is "" where an answer came."""

    id: str
    sent: float
    streams: bool
    error: str = ""


@dataclass(slots=True)
class Heard:
    """What came of one pass over all sessions. `cached` of the `prompt` tokens were in a cache."""

    prompt: int = 0
    cached: int = 0
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[Asked] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        share = self.cached / max(self.prompt, 1)
        return (
            f"{self.answers} answers, {self.cached} of {self.prompt} prompt tokens cached "
            f"({share:.1%}), {len(self.wrong)} wrong, {len(self.failed)} errors, "
            f"{len(self.lost)} lost"
        )


class Sessions:
    """What all agents ask, and the right answers once they are known."""

    def __init__(self, load: Load, seed: int) -> None:
        rng = random.Random(seed)
        self.load = load
        self._system: Json = {"role": "system", "content": question(rng, load.system)}
        self._questions = [
            [question(rng, load.words) for _ in range(load.turns)] for _ in range(load.sessions)
        ]
        self._right: dict[tuple[int, int], str] = {}

    def messages(self, session: int, turn: int) -> list[Json]:
        """The conversation up to the question of a turn. Earlier turns must have been learned."""
        said = [self._system]
        for earlier in range(turn):
            said.append({"role": "user", "content": self._questions[session][earlier]})
            said.append({"role": "assistant", "content": self._right[session, earlier]})
        return [*said, {"role": "user", "content": self._questions[session][turn]}]

    def judge(self, session: int, turn: int, text: str) -> str:
        """What is wrong with an answer, or ""; the first answer to a turn is right."""
        right = self._right.setdefault((session, turn), text)
        return "" if text == right else f"session {session}, turn {turn}: {text!r} for {right!r}"


class Pass:
    """All sessions once, for one `with`, which ends when every turn has had its answer. Half of the
    clients ask for streams where `streams`."""

    def __init__(self, sessions: Sessions, endpoint: Endpoint, *, streams: bool = False) -> None:
        self._sessions = sessions
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._keep_up, args=(number, streams and number % 2 > 0))
            for number in range(sessions.load.clients)
        ]
        self.heard = Heard()
        self._open: dict[str, Asked] = {}

    def __enter__(self) -> "Pass":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    @property
    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def streaming(self) -> set[str]:
        """The ids of the streams that have no end yet."""
        with self._lock:
            return {asked.id for asked in self._open.values() if asked.streams}

    def _keep_up(self, number: int, streams: bool) -> None:
        load = self._sessions.load
        headers = {"authorization": f"Bearer {self._endpoint.key}"}
        with httpx.Client(timeout=ANSWER_SECONDS, trust_env=False, headers=headers) as http:
            for turn in range(load.turns):
                for session in range(number, load.sessions, load.clients):
                    if not self._ask(http, session, turn, streams):
                        return

    def _ask(self, http: httpx.Client, session: int, turn: int, streams: bool) -> bool:
        """Ask as a client does that tries again after an error. False: nothing came of it."""
        body = {
            "model": self._endpoint.model,
            "messages": self._sessions.messages(session, turn),
            "temperature": 0,
            "max_tokens": self._sessions.load.tokens,
            "ignore_eos": True,
        }
        for _ in range(_TRIES):
            asked = Asked(str(uuid.uuid4()), time.monotonic(), streams)
            with self._lock:
                self._open[asked.id] = asked
            text, usage = self._answer(http, body, asked)
            with self._lock:
                del self._open[asked.id]
                if not asked.error:
                    self._note(text, usage, session, turn)
                    return True
                self.heard.failed.append(asked)
            time.sleep(_PAUSE_SECONDS)
        with self._lock:
            self.heard.lost.append(f"session {session}, turn {turn}")
        return False

    def _answer(self, http: httpx.Client, body: Json, asked: Asked) -> tuple[str, Json]:
        """The text and the usage of an answer, or nothing and the `error` of what was asked."""
        headers = {"x-request-id": asked.id}
        try:
            url = self._endpoint.url
            return asked_once(http, url, body, streams=asked.streams, headers=headers)
        except (httpx.HTTPError, AssertionError, KeyError, ValueError) as error:
            asked.error = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR] or "an error"
            return "", {}

    def _note(self, text: str, usage: Json, session: int, turn: int) -> None:
        heard = self.heard
        heard.answers += 1
        heard.prompt += int(usage["prompt_tokens"])
        heard.cached += int(usage["prompt_tokens_details"]["cached_tokens"])
        problem = self._sessions.judge(session, turn, text)
        if problem:
            heard.wrong.append(problem)
