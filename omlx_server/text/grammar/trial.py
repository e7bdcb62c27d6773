"""A program that tries grammars out in a child process, where a crash or an endless loop is
harmless.

    stdin                                      stdout
    the vocabulary                             {}
    {"kind", "text", "seconds"}                {"error": reason or null, "grammar": engine's text}
    {"walk": grammar, "size", "eos", "seconds"}          {"error"}; the grammar of all later steps
    {"state", "take": tokens, "forget", "seconds"}       {"problem", "too_costly", "done",
                                               "forced"}, then the state's mask

Each line is JSON; "bytes" in an answer is the length of what follows it. Seconds are processor
time.
"""

import json
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from omlx_server.core.crash import Crash, guarded
from omlx_server.text.encoding.low_priority import be_polite
from omlx_server.text.grammar.bounds import engine_limits
from omlx_server.text.grammar.constraint import GrammarConstraint

T = TypeVar("T")

MEMORY_BYTES = 2 << 30
WALK_BYTES = 512 << 20  # beside the vocabulary, for all answers of one grammar
STACK_BYTES = 2 << 20  # smaller than any thread's of the server: what fits here, fits there
# Trials have low priority, so that several of them leave the processors to answers at work. Steps
# of an answer have the usual one: the server's steps wait for them.
NICE = 19
STEPS = 48  # tokens of a trial
SLOW_SECONDS = 0.1


class Words(TokenizerWrapper):
    """The server's vocabulary, for the engine of this process."""

    def __init__(self, described: dict[str, Any]) -> None:
        self.tokens = [token.encode("latin-1") for token in described["tokens"]]
        self.special_token_ids = described["special"]
        self.eos_token_id = described["eos"][0]
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True
        self.engine: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        return self.engine.greedy_tokenize(text) if self.engine else []


class Trial:
    """Tries grammars, and keeps the states of one grammar's answers by number. A state that takes
    too long ends the process."""

    def __init__(self, described: dict[str, Any]) -> None:
        words = Words(described)
        self._engine = LLTokenizer(words, eos_token=described["eos"])
        words.engine = self._engine
        self._first_state: GrammarConstraint
        self._states: dict[int, GrammarConstraint] = {}

    def prove(self, question: dict[str, Any]) -> dict[str, Any]:
        # A client's GBNF becomes Lark.
        convert = any_to_lark if question["kind"] == "grammar" else str
        grammar = guarded(convert, question["text"])
        if isinstance(grammar, Crash):
            return {"error": str(grammar.error)[:500]}
        matcher = self._matcher(grammar)
        if matcher.is_error():
            return {"error": matcher.get_error()}
        error = error_of_answer(matcher.deep_copy(), seed=1) or error_of_answer(matcher, seed=2)
        return {"error": error, "grammar": grammar}

    def walk(self, question: dict[str, Any]) -> dict[str, Any]:
        eos_ids = frozenset(question["eos"])
        self._first_state = GrammarConstraint(
            self._matcher(question["walk"]), question["size"], eos_ids
        )
        self._first_state.mask()
        limit_memory(used_bytes() + WALK_BYTES)
        return {"error": self._first_state.problem}

    def step(self, question: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        for number in question["forget"]:
            self._states.pop(number, None)
        state = self._states.get(question["state"]) or self._first_state.copy()
        self._states[question["state"]] = state
        for token in question["take"]:
            state.take(token)
        view = {"forced": state.forced(), "done": state.done}
        mask = state.mask()
        return {**view, "problem": state.problem, "too_costly": state.too_costly}, mask

    def _matcher(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._engine, grammar, log_level=0, limits=engine_limits())


def error_of_answer(matcher: LLMatcher, seed: int) -> str | None:
    """Return what goes wrong in the first STEPS tokens of a random answer, or None."""
    randomness = random.Random(seed)
    for step in range(STEPS):
        start = time.thread_time()
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            error = matcher.get_error()
            return "nothing satisfies it" if step == 0 and "NoExtension" in error else error
        if matcher.is_stopped():
            return None
        matcher.consume_token(random_token(mask, randomness))
        if matcher.is_error():
            return matcher.get_error()
        if time.thread_time() - start > SLOW_SECONDS:
            return "it is too complex: a single token takes too long"
    return None


def random_token(mask: bytes, randomness: random.Random) -> int:
    # From a random place on, else from the beginning, up to the first byte with a bit.
    tail = mask[randomness.randrange(len(mask)) :].lstrip(b"\0") or mask.lstrip(b"\0")
    bits = [bit for bit in range(8) if tail[0] >> bit & 1]
    return (len(mask) - len(tail)) * 8 + randomness.choice(bits)


def in_time(job: Callable[[dict[str, Any]], T], question: dict[str, Any]) -> T:
    """Do a job. End the process when it takes more than its seconds of processor time."""
    seconds = question["seconds"]
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    # The kernel's limit, in whole seconds, is for a job that the timer's signal does not end.
    limit = int(time.process_time() + 2 * seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return job(question)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def limit_memory(most_bytes: int) -> None:
    if sys.platform == "linux":  # elsewhere the kernel does not keep to it
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = most_bytes if hard == resource.RLIM_INFINITY else min(most_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def used_bytes() -> int:
    if sys.platform != "linux":
        return 0
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def serve() -> None:
    with ThreadPoolExecutor(1, initializer=be_polite, initargs=(NICE,)) as polite:
        trial = polite.submit(Trial, json.loads(sys.stdin.buffer.readline())).result()
        write_answer({})
        for line in sys.stdin.buffer:
            question = json.loads(line)
            if "state" in question:
                write_answer(*in_time(trial.step, question))
            else:
                job = trial.walk if "walk" in question else trial.prove
                write_answer(polite.submit(in_time, job, question).result())


def write_answer(value: dict[str, Any], body: bytes = b"") -> None:
    line = json.dumps({**value, "bytes": len(body)}).encode()
    sys.stdout.buffer.write(line + b"\n" + body)
    sys.stdout.buffer.flush()


def main() -> None:
    limit_memory(MEMORY_BYTES)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
