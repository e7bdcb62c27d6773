"""Runs a grammar in a process of its own, because nothing bounds the work of its tokens.

A process over its budget of processor time, or silent for PATIENCE seconds more, ends together with
its answers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from weakref import finalize

from omlx_server.text.grammar.bounds import SECONDS, SECONDS_PER_TOKEN
from omlx_server.text.grammar.constraint import SLOW, costly
from omlx_server.text.grammar.masks import mask_of
from omlx_server.text.grammar.prover import Prover

# Seconds of real time, for what the process itself does not notice: it or the machine was stopped.
PATIENCE = 2.0
_FREE_SPELLING = '%llguidance {"no_forcing": true}\n'


def free_spelling(grammar: str) -> str:
    """Return a proven grammar as Lark that forces no tokens."""
    if not grammar.startswith("{"):
        return _FREE_SPELLING + grammar
    (inner,) = json.loads(grammar)["grammars"]
    return f"{_FREE_SPELLING}start: %json {json.dumps(inner['json_schema'])}"


@dataclass(frozen=True, slots=True)
class View:
    """The process's view of one state; the fields are those of `core.request.Constraint`."""

    mask: bytes
    forced: Sequence[int] = ()
    done: bool = False
    problem: str | None = None
    too_costly: bool = False


class Walker:
    """The process of one grammar. Any thread may ask; one is served at a time."""

    def __init__(self, prover: Prover, size: int, eos_ids: frozenset[int]) -> None:
        self._prover = prover
        self._lock = Lock()
        self._numbers = count(1)
        self._open: set[int] = set()
        self._gone: list[int] = []
        self._size = size
        self._eos_ids = eos_ids
        self._died = False
        self.first = self.view(0, (), 0)

    @property
    def alive(self) -> bool:
        return not self._died and self._prover.alive

    def retire(self) -> bool:
        """Mark the process as dead if no answer needs it. Return whether it can be closed."""
        with self._lock:
            self._died |= not self._open
        return self._died

    def enter(self) -> int:
        with self._lock:
            number = next(self._numbers)
            self._open.add(number)
        return number

    def leave(self, number: int) -> None:
        """Forget a state. Takes no lock, since the garbage collector may call it."""
        self._open.discard(number)
        self._gone.append(number)

    def view(self, number: int, tokens: Sequence[int], already: int) -> View:
        """Return the view of state `number` after `tokens` more, behind `already` tokens. A dead
        process gives a `problem`."""
        with self._lock:
            view = None if self._died else self._ask(number, tokens)
            self._died = view is None
        return self._over(already + len(tokens)) if view is None else view

    def close(self) -> None:
        with self._lock:
            self._died = True
        self._prover.close()

    def _ask(self, number: int, tokens: Sequence[int]) -> View | None:
        gone, self._gone = self._gone, []
        seconds = SECONDS + len(tokens) * SECONDS_PER_TOKEN
        job = {"state": number, "take": tokens, "forget": gone, "seconds": seconds}
        state = self._prover.ask(job, PATIENCE + seconds)
        return None if state is None else View(mask=state[1], **state[0])

    def _over(self, tokens: int) -> View:
        why = costly(tokens, f"{SLOW} or too much memory")
        return View(mask_of(self._size, self._eos_ids), problem=why, too_costly=True)


class ApartConstraint:
    """The state of one answer, owned by one thread at a time. A copy is a new state, which takes
    all tokens again."""

    takes_drafts = False

    def __init__(self, walker: Walker, tokens: Sequence[int] = ()) -> None:
        self._walker = walker
        self._number = walker.enter()
        self._tokens = list(tokens)
        self._sent = 0
        self._view = walker.first if walker.alive and not tokens else None
        finalize(self, walker.leave, self._number).atexit = False

    @property
    def done(self) -> bool:
        return self._known.done

    @property
    def problem(self) -> str | None:
        return self._known.problem

    @property
    def too_costly(self) -> bool:
        return self._known.too_costly

    def copy(self) -> "ApartConstraint":
        return ApartConstraint(self._walker, self._tokens)

    def mask(self) -> bytes:
        return self._known.mask

    def take(self, token: int) -> None:
        if self._view is not None and self._view.problem is not None:
            return
        self._tokens.append(token)
        self._view = None

    def forced(self) -> Sequence[int]:
        return list(self._known.forced)

    @property
    def _known(self) -> View:
        if self._view is None:
            fresh = self._tokens[self._sent :]
            self._view = self._walker.view(self._number, fresh, self._sent)
            self._sent = len(self._tokens)
        return self._view
