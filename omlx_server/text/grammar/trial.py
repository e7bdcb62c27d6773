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
STEPS = 48
SLOW_SECONDS = 0.1


class Words(TokenizerWrapper):
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
        self._first: GrammarConstraint
        self._states: dict[int, GrammarConstraint] = {}

    def prove(self, asked: dict[str, Any]) -> dict[str, Any]:
        # A client's GBNF becomes Lark.
        form = any_to_lark if asked["kind"] == "grammar" else str
        grammar = guarded(form, asked["text"])
        if isinstance(grammar, Crash):
            return {"error": str(grammar.error)[:500]}
        matcher = self._matcher(grammar)
        error = failure(matcher) or walked(matcher.deep_copy(), 1) or walked(matcher, 2)
        return {"error": error, "grammar": grammar}

    def walk(self, asked: dict[str, Any]) -> dict[str, Any]:
        eos_ids = frozenset(asked["eos"])
        self._first = GrammarConstraint(self._matcher(asked["walk"]), asked["size"], eos_ids)
        self._first.mask()
        limit_memory(vm_bytes() + WALK_BYTES)
        return {"error": self._first.problem}

    def step(self, asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        for number in asked["forget"]:
            self._states.pop(number, None)
        state = self._states.get(asked["state"]) or self._first.copy()
        self._states[asked["state"]] = state
        for token in asked["take"]:
            state.take(token)
        view = {"forced": state.forced(), "done": state.done}
        mask = state.mask()
        return {**view, "problem": state.problem, "too_costly": state.too_costly}, mask

    def _matcher(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._engine, grammar, log_level=0, limits=engine_limits())


def failure(matcher: LLMatcher) -> str | None:
    return matcher.get_error() if matcher.is_error() else None


def walked(matcher: LLMatcher, seed: int) -> str | None:
    """Return what goes wrong in the first STEPS tokens of a random answer, or None."""
    chance = random.Random(seed)
    for step in range(STEPS):
        start = time.thread_time()
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            error = failure(matcher) or ""
            return "nothing satisfies it" if step == 0 and "NoExtension" in error else error
        if matcher.is_stopped():
            return None
        matcher.consume_token(some_token(mask, chance))
        if matcher.is_error():
            return failure(matcher)
        if time.thread_time() - start > SLOW_SECONDS:
            return "it is too complex: a single token takes too long"
    return None


def some_token(mask: bytes, chance: random.Random) -> int:
    tail = mask[chance.randrange(len(mask)) :].lstrip(b"\0") or mask.lstrip(b"\0")
    # `rest` reaches to the end of the mask and begins with a byte that has a bit.
    bits = [bit for bit in range(8) if tail[0] >> bit & 1]
    return (len(mask) - len(tail)) * 8 + chance.choice(bits)


def in_time(job: Callable[[dict[str, Any]], T], asked: dict[str, Any]) -> T:
    """Do a job. End the process when it takes more than its seconds of processor time."""
    seconds = asked["seconds"]
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    limit = int(time.process_time() + 2 * seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return job(asked)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def limit_memory(count: int) -> None:
    if sys.platform == "linux":  # elsewhere the kernel does not keep to it
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def vm_bytes() -> int:
    if sys.platform != "linux":
        return 0
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def serve() -> None:
    with ThreadPoolExecutor(1, initializer=be_polite, initargs=(NICE,)) as polite:
        trial = polite.submit(Trial, json.loads(sys.stdin.buffer.readline())).result()
        answer({})
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            if "state" in asked:
                answer(*in_time(trial.step, asked))
            else:
                job = trial.walk if "walk" in asked else trial.prove
                answer(polite.submit(in_time, job, asked).result())


def answer(value: dict[str, Any], body: bytes = b"") -> None:
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
