"""The clients of the stress test: they ask greedily, each in a thread, and compare the answers to a
prompt with its first one."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count
from threading import Lock, Thread
from typing import Any

from omlx_server.cli.bench.words import VOCABULARY
from omlx_server.cli.server_client.http import NoAnswer, ServerClient
from omlx_server.doctor.stress.report import PhaseFigures

_ANSWER_TOKENS = 64
_GREEDY = {"max_tokens": _ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
_LATE_SECONDS = 10.0  # in which answers may come after the end
_PAUSE_SECONDS = 0.5  # after an error
_NO_ROOM = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_TOO_LONG = ("context_length_exceeded", "insufficient_memory", "request_too_large")
_SHORTER = 0.85
_LONGEST = 1_000_000  # number of the longest prompt


@dataclass(frozen=True, slots=True)
class StressPlan:
    """The extent of the test. Evictions need prompts that the hot tier does not hold together."""

    hot_bytes: int = 256_000_000
    cold_bytes: int = 2_000_000_000
    most_tokens: int = 2048  # of a prompt, the longest one aside
    prompts: int = 24
    most_taken: int = 1 << 40  # bytes for the other program, if the machine can spare them


class StressClients:
    """Clients of one server. They ask until `end` on the monotonic clock, and count in `figures`;
    both are of a phase."""

    def __init__(self, plan: StressPlan) -> None:
        self.plan = plan
        self.server, self.model = ServerClient(""), ""
        self.figures, self.end = PhaseFigures(), 0.0
        self.context = 0  # tokens
        self.answers: dict[tuple[int, int], str] = {}  # the first one to each prompt
        self._word_ids: Sequence[int] = ()
        self._lock = Lock()
        self._threads: list[Thread] = []

    @property
    def are_asking(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def learn(self) -> None:
        """Ask the server for the model's context and tokens. Raises NoAnswer."""
        body = {"model": self.model, "prompt": VOCABULARY, "add_special_tokens": False}
        answer = self.server.post("/tokenize", body).json_object or {}
        self._word_ids, self.context = answer["tokens"], answer["max_model_len"]

    def start(self, *works: Callable[[], None]) -> None:
        for work in works:
            self._threads.append(Thread(target=work, daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Wait for the clients; their requests end by now, or with the server."""
        self.end = 0.0
        for thread in self._threads:
            thread.join()

    def ask_in_turn(self, first: int) -> None:
        for number in count(first):
            if time.monotonic() >= self.end:
                return
            number %= self.plan.prompts
            self.ask(number, self.tokens_of(number))

    def tokens_of(self, number: int) -> int:
        """Return the length of a prompt that clients ask in turn."""
        return min(self.plan.most_tokens, self.context // 4) * (1 + number % 4) // 4

    def ask_longest(self) -> None:
        """Ask for as many tokens as context and memory allow, with nothing from the cache."""
        tokens = self.context - _ANSWER_TOKENS
        for number in count():
            if time.monotonic() >= self.end:
                return
            if self.ask(_LONGEST, tokens, cache_salt=f"salt {number}") in _TOO_LONG:
                tokens = int(tokens * _SHORTER)

    def ask(self, number: int, tokens: int, **fields: str) -> str:
        """Ask, and count; return the code of an error. With a salt a prompt may be too long."""
        prompt = random.Random(number).choices(self._word_ids, k=tokens)
        body = {"model": self.model, "prompt": prompt, **_GREEDY, **fields}
        seconds = max(0.0, self.end - time.monotonic()) + _LATE_SECONDS
        try:
            reply = self.server.post("/v1/completions", body, seconds)
        except NoAnswer:
            self._count_error("connection")
            return ""
        if reply.status == HTTPStatus.OK:
            with self._lock:
                self._count_answer((number, tokens), reply.json_object or {})
            return ""
        code = str(reply.error.get("code") or f"http_{reply.status}")
        if not (fields and code in _TOO_LONG):
            self._count_error(code, reply.status)
        return code

    def _count_answer(self, prompt: tuple[int, int], answer: Mapping[str, Any]) -> None:
        figures, [choice] = self.figures, answer["choices"]
        figures.requests += 1
        figures.tokens += answer["usage"]["total_tokens"]
        figures.longest_prompt = max(figures.longest_prompt, answer["usage"]["prompt_tokens"])
        if choice["finish_reason"] != "length":
            figures.errors[choice["finish_reason"]] += 1
        first = self.answers.setdefault(prompt, choice["text"])
        figures.different += choice["text"] != first

    def _count_error(self, code: str, status: int = 0) -> None:
        figures = self.figures
        with self._lock:
            if not status and time.monotonic() >= self.end:
                figures.unfinished += 1
            else:
                (figures.refused if status in _NO_ROOM else figures.errors)[code] += 1
        time.sleep(_PAUSE_SECONDS)
