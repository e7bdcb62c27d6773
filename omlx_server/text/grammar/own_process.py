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
from omlx_server.text.grammar.constraint import SLOW, too_costly_text
from omlx_server.text.grammar.masks import mask_of
from omlx_server.text.grammar.prover import Prover

# Seconds of real time, for what the process itself does not notice: it or the machine was stopped.
PATIENCE = 2.0
# Lark's option for a grammar that forces no tokens.
_NO_FORCING = '%llguidance {"no_forcing": true}\n'


def without_forcing(grammar: str) -> str:
    """Return a proven grammar as Lark that forces no tokens."""
    if not grammar.startswith("{"):  # else it is one JSON schema
        return _NO_FORCING + grammar
    (only,) = json.loads(grammar)["grammars"]
    return f"{_NO_FORCING}start: %json {json.dumps(only['json_schema'])}"


@dataclass(frozen=True, slots=True)
class StateView:
    """One state, as its process tells; the fields are those of `core.request.Constraint`."""

    mask: bytes
    forced: Sequence[int] = ()
    done: bool = False
    problem: str | None = None
    too_costly: bool = False


class GrammarProcess:
    """The process of one grammar. Any thread may ask; one is served at a time."""

    def __init__(self, prover: Prover, size: int, eos_ids: frozenset[int]) -> None:
        self._prover = prover
        self._lock = Lock()
        self._numbers = count(1)
        self._open_states: set[int] = set()
        self._left_states: list[int] = []
        self._size = size
        self._eos_ids = eos_ids
        self._is_dead = False
        self.first_view = self.view(0, (), 0)

    @property
    def alive(self) -> bool:
        return not self._is_dead and self._prover.alive

    def retire(self) -> bool:
        """Mark the process as dead if no answer needs it. Return whether it can be closed."""
        with self._lock:
            self._is_dead |= not self._open_states
        return self._is_dead

    def open_state(self) -> int:
        with self._lock:
            number = next(self._numbers)
            self._open_states.add(number)
        return number

    def leave_state(self, number: int) -> None:
        """Forget a state. Takes no lock, since the garbage collector may call it."""
        self._open_states.discard(number)
        self._left_states.append(number)

    def view(self, number: int, tokens: Sequence[int], tokens_before: int) -> StateView:
        """Return the view of state `number` after these and `tokens_before` tokens. A dead process
        gives a `problem`."""
        with self._lock:
            view = None if self._is_dead else self._ask(number, tokens)
            self._is_dead = view is None
        return self._view_of_dead(tokens_before + len(tokens)) if view is None else view

    def close(self) -> None:
        with self._lock:
            self._is_dead = True
        self._prover.close()

    def _ask(self, number: int, tokens: Sequence[int]) -> StateView | None:
        left, self._left_states = self._left_states, []
        seconds = SECONDS + len(tokens) * SECONDS_PER_TOKEN
        job = {"state": number, "take": tokens, "forget": left, "seconds": seconds}
        reply = self._prover.ask(job, PATIENCE + seconds)
        return None if reply is None else StateView(mask=reply[1], **reply[0])

    def _view_of_dead(self, tokens: int) -> StateView:
        why = too_costly_text(tokens, f"{SLOW} or too much memory")
        return StateView(mask_of(self._size, self._eos_ids), problem=why, too_costly=True)


class ApartConstraint:
    """The state of one answer, owned by one thread at a time. Tokens are sent when something is
    asked. A copy is a new state, which takes all tokens again."""

    takes_drafts = False

    def __init__(self, process: GrammarProcess, tokens: Sequence[int] = ()) -> None:
        self._process = process
        self._number = process.open_state()
        self._tokens = list(tokens)
        self._sent_count = 0
        self._view = process.first_view if process.alive and not tokens else None
        finalize(self, process.leave_state, self._number).atexit = False

    @property
    def done(self) -> bool:
        return self._current_view.done

    @property
    def problem(self) -> str | None:
        return self._current_view.problem

    @property
    def too_costly(self) -> bool:
        return self._current_view.too_costly

    def copy(self) -> "ApartConstraint":
        return ApartConstraint(self._process, self._tokens)

    def mask(self) -> bytes:
        return self._current_view.mask

    def take(self, token: int) -> None:
        if self._view is not None and self._view.problem is not None:
            return
        self._tokens.append(token)
        self._view = None

    def forced(self) -> Sequence[int]:
        return list(self._current_view.forced)

    @property
    def _current_view(self) -> StateView:
        if self._view is None:
            unsent = self._tokens[self._sent_count :]
            self._view = self._process.view(self._number, unsent, self._sent_count)
            self._sent_count = len(self._tokens)
        return self._view
