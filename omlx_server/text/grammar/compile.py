"""Compiles the grammars of one model, in bounded time, with a cache. Any thread.

A client's grammar is first compiled in a child process (`prover.py`), and stays in one if a token
could take too long.
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
from omlx_server.text.grammar.prover import (
    ApartConstraint,
    GrammarProcess,
    GrammarRefusal,
    Prover,
    without_forcing,
)
from omlx_server.text.grammar.to_grammar import GrammarKind, GrammarSpec, refusal
from omlx_server.text.grammar.vocabulary import Vocabulary

WORKERS = 4
NICE = 5
# Measured: 100 to 230 bytes for each character of a grammar's text, and some 100 kB for its lexer
# once it was used.
_BYTES_OF_ENTRY = 128 << 10
_BYTES_PER_CHAR = 256
# Of the process of a grammar that runs apart, about.
_BYTES_OF_PROCESS = 64 << 20
_LEAST_LIMIT_FOR_CHILD = 64 * _BYTES_OF_PROCESS
# What the engine says of a grammar with more symbols than it may have.
_TOO_MANY_SYMBOLS = "grammar size"
# A grammar in the server or in a process of its own. Answers get copies of it.
CompiledGrammar = LLMatcher | GrammarProcess


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
        self._cache: OrderedDict[GrammarSpec, Future[CompiledGrammar]] = OrderedDict()
        self._processes: list[GrammarProcess] = []  # the newest last
        self._idle_provers: list[Prover] = []
        self._closed = False
        self.compiled = 0

    async def constraint(self, spec: GrammarSpec) -> Constraint:
        """Return a new constraint. Raises BadRequest that names the field, Unavailable where no
        process is free."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.compile, spec)

    def compile(self, spec: GrammarSpec) -> Constraint:
        try:
            constraint = self._copy(self._cached(spec))
            constraint.mask()
            # Copies share a lexer. When earlier answers brought it to its limits, compile anew.
            if constraint.problem is None:
                return constraint
            self._forget(spec)
            return self._copy(self._cached(spec))
        except GrammarRefusal as error:
            raise refusal(spec, str(error)) from error

    @property
    def apart(self) -> int:
        with self._lock:
            return sum(process.alive for process in self._processes)

    def warm(self, memory_limit: int = sys.maxsize) -> None:
        """Make the engine and, unless it is much of `memory_limit` bytes, a child process."""
        if self.vocabulary.eos_ids:
            _ = self.vocabulary.engine
            if memory_limit >= _LEAST_LIMIT_FOR_CHILD:
                with self._borrow_prover():
                    pass

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def nbytes(self) -> int:
        """Bytes of the cache, estimated from the lengths of the texts."""
        with self._lock:
            return self._cache_bytes()

    @property
    def bytes_apart(self) -> int:
        """Bytes of the child processes, estimated from one."""
        with self._lock:
            return (len(self._processes) + len(self._idle_provers)) * _BYTES_OF_PROCESS

    def _cache_bytes(self) -> int:
        chars = sum(len(spec.text) for spec in self._cache)
        return len(self._cache) * _BYTES_OF_ENTRY + chars * _BYTES_PER_CHAR

    def close(self) -> None:
        with self._lock:
            self._closed = True
            children: list[Prover | GrammarProcess] = [*self._idle_provers, *self._processes]
            self._idle_provers, self._processes = [], []
        for child in children:
            child.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _copy(self, compiled: CompiledGrammar) -> Constraint:
        if isinstance(compiled, GrammarProcess):
            return ApartConstraint(compiled)
        return GrammarConstraint(compiled.deep_copy(), self.vocabulary.size, self._eos_ids)

    def _cached(self, spec: GrammarSpec) -> CompiledGrammar:
        """Return the compiled grammar; the first thread to ask compiles it, others wait."""
        with self._lock:
            own: Future[CompiledGrammar] = Future()
            future = self._cache.setdefault(spec, own)
            self._cache.move_to_end(spec)
            while len(self._cache) > 1 and (
                len(self._cache) > self.entries or self._cache_bytes() > self.most_bytes
            ):
                self._cache.popitem(last=False)
        if future is own:
            self._compile_for_all(spec, future)
        try:
            return future.result()
        finally:
            del future, own  # else a refusal's traceback would hold itself

    def _compile_for_all(self, spec: GrammarSpec, future: "Future[CompiledGrammar]") -> None:
        try:
            outcome = guarded(self._compile_new, spec)
            if isinstance(outcome, Crash):
                self._forget(spec)
                future.set_exception(outcome.error)
            else:
                future.set_result(outcome)
        finally:
            # Succeeds only without an outcome: whatever ended this thread, nobody waits for ever.
            if future.cancel():
                self._forget(spec)

    def _forget(self, spec: GrammarSpec) -> None:
        with self._lock:
            self._cache.pop(spec, None)

    def _compile_new(self, spec: GrammarSpec) -> CompiledGrammar:
        if not self.vocabulary.eos_ids:
            raise GrammarRefusal("the model has no end-of-sequence token")
        if spec.trusted:
            return self._compile_here(spec.text, None)
        with self._borrow_prover() as prover:
            # Lark and GBNF look alike to a client, and the child tells them apart.
            kind = "grammar" if spec.kind is GrammarKind.GRAMMAR else "engine"
            proven = prover.prove(kind, spec.text, seconds=self.seconds)
            try:
                return self._compile_here(proven, spec.symbols)
            except GrammarRefusal as error:
                if _TOO_MANY_SYMBOLS not in str(error):
                    raise
            return self._start_process(proven, prover)

    def _compile_here(self, grammar: str, symbols: int | None) -> LLMatcher:
        if symbols == 0:
            raise GrammarRefusal(_TOO_MANY_SYMBOLS)
        self.compiled += 1
        limits = engine_limits(symbols)
        matcher = LLMatcher(self.vocabulary.engine, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarRefusal(matcher.get_error())
        return matcher

    def _start_process(self, grammar: str, prover: Prover) -> GrammarProcess:
        self._make_room_for_process()
        size, eos_ids = self.vocabulary.size, self.vocabulary.eos_ids
        with ExitStack() as undo:
            undo.callback(prover.close)
            prover.walk(without_forcing(grammar), size, eos_ids, seconds=self.seconds)
            process = GrammarProcess(prover, size, self._eos_ids)
            undo.pop_all()
        with self._lock:
            self._processes.append(process)
        return process

    def _make_room_for_process(self) -> None:
        """Close the oldest processes that no answer needs. Raises Unavailable without one."""
        with self._lock:
            kept = [process for process in self._processes if process.alive]
            for process in list(kept):
                if len(kept) >= self.most_apart and process.retire():
                    kept.remove(process)
            dropped = [process for process in self._processes if process not in kept]
            self._processes, is_full = kept, len(kept) >= self.most_apart
        for process in dropped:
            process.close()
        if is_full:
            problem = f"{self.most_apart} grammars that need a process of their own are in use"
            raise Unavailable(f"{problem}; try again in a second", retry_after=1)

    @contextmanager
    def _borrow_prover(self) -> Iterator[Prover]:
        with self._lock:
            prover = self._idle_provers.pop() if self._idle_provers else None
        if prover is None or not prover.alive:
            prover = Prover(self.vocabulary.described())
        try:
            yield prover
        finally:
            if not prover.walks:
                self._give_back(prover)

    def _give_back(self, prover: Prover) -> None:
        with self._lock:
            is_kept = not (self._idle_provers or self._closed) and prover.alive
            if is_kept:
                self._idle_provers.append(prover)
        if not is_kept:
            prover.close()
