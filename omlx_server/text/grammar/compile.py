"""Compiles the grammars of one model, in bounded time, with a cache. Any thread.

A client's grammar is first compiled in a child process (`prover.py`), and stays in one
(`own_process.py`) if a token could take too long.
"""

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Lock

from llguidance import LLMatcher

from omlx_server.core.crash import Crash, guarded
from omlx_server.core.request import Constraint
from omlx_server.errors import Unavailable
from omlx_server.text.encoding.low_priority import be_polite
from omlx_server.text.grammar.bounds import engine_limits
from omlx_server.text.grammar.constraint import GrammarConstraint
from omlx_server.text.grammar.own_process import ApartConstraint, Walker, free_spelling
from omlx_server.text.grammar.prover import GrammarRefusal, Prover
from omlx_server.text.grammar.to_grammar import GrammarKind, GrammarSpec, refusal
from omlx_server.text.grammar.vocabulary import Vocabulary

WORKERS = 4
NICE = 5
# Measured: 100 to 230 bytes for each character of a grammar's text, and some 100 kB for its lexer
# once it was used.
_BYTES_EACH = 128 << 10
_BYTES_PER_CHAR = 256
# About what the process of a grammar that is run apart takes.
_BYTES_APART = 64 << 20
_LIMIT_WITH_CHILD = 64 * _BYTES_APART
# What the engine says of a grammar with more symbols than it may have.
_TOO_LARGE = "grammar size"


# A matcher never takes a token itself: answers get copies.
Made = LLMatcher | Walker


class Grammars:
    """`seconds`: processor time for one compile. The cache holds `entries` grammars of about
    `most_bytes`; at most `most_apart` have a process of their own."""

    seconds = 3.0
    entries = 64
    most_bytes = 32 << 20
    most_apart = 8

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._threads = ThreadPoolExecutor(
            WORKERS, thread_name_prefix="grammar", initializer=be_polite, initargs=(NICE,)
        )
        self._lock = Lock()
        self._known: OrderedDict[GrammarSpec, Future[Made]] = OrderedDict()
        self._walkers: list[Walker] = []  # the newest last
        self._idle: list[Prover] = []
        self._closed = False
        self.compiled = 0

    async def constraint(self, spec: GrammarSpec) -> Constraint:
        """Return a new constraint. Raises BadRequest that names the field, Unavailable where no
        process is free."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.compile, spec)

    def compile(self, spec: GrammarSpec) -> Constraint:
        try:
            constraint = self._copy(self._shared(spec))
            # Copies share the engine's lexer: one that came to its limits is of no use any more.
            constraint.mask()
            if constraint.problem is None:
                return constraint
            self._forget(spec)
            return self._copy(self._shared(spec))
        except GrammarRefusal as error:
            raise refusal(spec, str(error)) from error

    @property
    def apart(self) -> int:
        with self._lock:
            return sum(walker.alive for walker in self._walkers)

    def warm(self, memory_limit: int = sys.maxsize) -> None:
        """Make the engine and a child process ahead, unless the child would be much of the
        `memory_limit` (bytes)."""
        if self.vocabulary.eos_ids:
            _ = self.vocabulary.engine
            if memory_limit >= _LIMIT_WITH_CHILD:
                with self._prover():
                    pass

    def __len__(self) -> int:
        return len(self._known)

    @property
    def nbytes(self) -> int:
        """Bytes of the cache, estimated from the lengths of the texts."""
        with self._lock:
            return self._nbytes()

    @property
    def bytes_apart(self) -> int:
        """Bytes of the child processes, estimated from one."""
        with self._lock:
            return (len(self._walkers) + len(self._idle)) * _BYTES_APART

    def _nbytes(self) -> int:
        chars = sum(len(spec.text) for spec in self._known)
        return len(self._known) * _BYTES_EACH + chars * _BYTES_PER_CHAR

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle: list[Prover | Walker] = [*self._idle, *self._walkers]
            self._idle, self._walkers = [], []
        for child in idle:
            child.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _copy(self, found: Made) -> Constraint:
        if isinstance(found, Walker):
            return ApartConstraint(found)
        return GrammarConstraint(found.deep_copy(), self.vocabulary.size, self._eos_ids)

    def _shared(self, spec: GrammarSpec) -> Made:
        with self._lock:
            new: Future[Made] = Future()
            future = self._known.setdefault(spec, new)
            self._known.move_to_end(spec)
            while len(self._known) > 1 and (
                len(self._known) > self.entries or self._nbytes() > self.most_bytes
            ):
                self._known.popitem(last=False)
        if future is new:
            self._fulfil(spec, future)
        try:
            return future.result()
        finally:
            del future, new  # else a refusal's traceback would hold itself

    def _fulfil(self, spec: GrammarSpec, future: "Future[Made]") -> None:
        try:
            outcome = guarded(self._make, spec)
            if isinstance(outcome, Crash):
                self._forget(spec)
                future.set_exception(outcome.error)
            else:
                future.set_result(outcome)
        finally:
            # Whatever ended this thread, nobody waits for ever.
            if future.cancel():
                self._forget(spec)

    def _forget(self, spec: GrammarSpec) -> None:
        with self._lock:
            self._known.pop(spec, None)

    def _make(self, spec: GrammarSpec) -> Made:
        if not self.vocabulary.eos_ids:
            raise GrammarRefusal("the model has no end-of-sequence token")
        if spec.trusted:
            return self._compiled(spec.text, None)
        with self._prover() as prover:
            # Lark and GBNF look alike to a client, and the child tells them apart.
            kind = "grammar" if spec.kind is GrammarKind.GRAMMAR else "engine"
            proven = prover.prove(kind, spec.text, seconds=self.seconds)
            try:
                return self._compiled(proven, spec.symbols)
            except GrammarRefusal as error:
                if _TOO_LARGE not in str(error):
                    raise
            return self._apart(proven, prover)

    def _compiled(self, grammar: str, symbols: int | None) -> LLMatcher:
        if symbols == 0:
            raise GrammarRefusal(_TOO_LARGE)
        self.compiled += 1
        limits = engine_limits(symbols)
        matcher = LLMatcher(self.vocabulary.engine, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarRefusal(matcher.get_error())
        return matcher

    def _apart(self, grammar: str, prover: Prover) -> Walker:
        self._make_room()
        size, eos_ids = self.vocabulary.size, self.vocabulary.eos_ids
        with ExitStack() as undo:
            undo.callback(prover.close)
            prover.walk(free_spelling(grammar), size, eos_ids, seconds=self.seconds)
            walker = Walker(prover, size, self._eos_ids)
            undo.pop_all()
        with self._lock:
            self._walkers.append(walker)
        return walker

    def _make_room(self) -> None:
        with self._lock:
            stay = [walker for walker in self._walkers if walker.alive]
            for walker in list(stay):
                if len(stay) >= self.most_apart and walker.retire():
                    stay.remove(walker)
            gone = [walker for walker in self._walkers if walker not in stay]
            self._walkers, full = stay, len(stay) >= self.most_apart
        for walker in gone:
            walker.close()
        if full:
            problem = f"{self.most_apart} grammars that need a process of their own are in use"
            raise Unavailable(f"{problem}; try again in a second", retry_after=1)

    @contextmanager
    def _prover(self) -> Iterator[Prover]:
        with self._lock:
            prover = self._idle.pop() if self._idle else None
        if prover is None or not prover.alive:
            prover = Prover(self.vocabulary.described())
        try:
            yield prover
        finally:
            if not prover.walks:
                self._put_back(prover)

    def _put_back(self, prover: Prover) -> None:
        with self._lock:
            keeps = not (self._idle or self._closed) and prover.alive
            if keeps:
                self._idle.append(prover)
        if not keeps:
            prover.close()
