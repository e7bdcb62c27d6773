"""A grammar that is run in a process of its own, because nothing bounds the work of its tokens.

The mlx thread asks it for each token and waits no longer than the budget of a token: then the
process ends, and with it what it held. All answers of the grammar end with it; no others do. That
costs a pipe for each token, so only what `bounds.py` does not vouch for runs here. How to spell
what must come is left to the model: this process does not know its tokenizer, only its tokens.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any
from weakref import finalize

from omlx_server.text.grammar.budget import SECONDS, SECONDS_PER_TOKEN
from omlx_server.text.grammar.constraint import SLOW, costly, mask_of
from omlx_server.text.grammar.prover import Prover

# Seconds on the clock, for what the process itself does not notice: it was stopped, or the machine.
PATIENCE = 2.0
_FREE_SPELLING = '%llguidance {"no_forcing": true}\n'


def free_spelling(grammar: str) -> str:
    """A proven grammar that forces no tokens, as Lark, which alone has an option for that."""
    if not grammar.startswith("{"):
        return _FREE_SPELLING + grammar
    (inner,) = json.loads(grammar)["grammars"]
    return f"{_FREE_SPELLING}start: %json {json.dumps(inner['json_schema'])}"


@dataclass(frozen=True, slots=True)
class View:
    """What is known of a state."""

    mask: bytes
    forced: tuple[int, ...] = ()
    done: bool = False
    problem: str | None = None
    too_costly: bool = False


class Walker:
    """The process of one grammar. Any thread: one is served at a time."""

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
        """End it if no answer needs it; it is to be closed then."""
        with self._lock:
            self._died |= not self._open
        return self._died

    def enter(self) -> int:
        """The number of a new state."""
        with self._lock:
            number = next(self._numbers)
            self._open.add(number)
        return number

    def leave(self, number: int) -> None:
        """Nobody will ask for this state again. Without the lock: the collector may call it."""
        self._open.discard(number)
        self._gone.append(number)

    def view(self, number: int, tokens: Sequence[int], already: int) -> View:
        """A state after these tokens, behind `already` ones."""
        with self._lock:
            found = None if self._died else self._ask(number, tokens)
            self._died = found is None
        return self._over(already + len(tokens)) if found is None else found

    def close(self) -> None:
        with self._lock:
            self._died = True
        self._prover.close()

    def _ask(self, number: int, tokens: Sequence[int]) -> View | None:
        gone, self._gone = self._gone, []
        seconds = SECONDS + len(tokens) * SECONDS_PER_TOKEN
        asked = {"state": number, "take": tokens, "forget": gone, "seconds": seconds}
        reply = self._prover.step(asked, seconds=PATIENCE + seconds)
        return None if reply is None else _view(reply.told, reply.mask)

    def _over(self, tokens: int) -> View:
        """Only the end may come."""
        why = costly(tokens, f"{SLOW} or too much memory")
        return View(mask_of(self._size, self._eos_ids), problem=why, too_costly=True)


def _view(told: Mapping[str, Any], mask: bytes) -> View:
    return View(
        mask, tuple(told["forced"]), told["done"], told["problem"], bool(told["too_costly"])
    )


class Apart:
    """Where one answer stands in a grammar that is run apart. Owned by one thread at a time.

    Tokens are sent when something is asked. A copy is a state that takes all of them again.
    """

    def __init__(self, walker: Walker, tokens: Sequence[int] = ()) -> None:
        self._walker = walker
        self._number = walker.enter()
        self._tokens = list(tokens)
        self._sent = 0
        self._view = None if tokens else walker.first
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

    def copy(self) -> "Apart":
        return Apart(self._walker, self._tokens)

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
