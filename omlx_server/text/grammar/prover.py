"""The child process that tries grammars out (`trial.py`), and our side of it. Owned by one thread
at a time."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import finalize

from omlx_server.errors import InternalError
from omlx_server.text.grammar.bounds import SECONDS, SECONDS_PER_TOKEN
from omlx_server.text.grammar.constraint import SLOW, mask_of, too_costly_text

START_SECONDS = 60.0
# The most real time of a trial, in its seconds of processor time.
_REAL_TIME_FACTOR = 10
_END_SECONDS = 10
_SOURCE_FOLDER = str(Path(__file__).parents[3])
# Seconds of real time, for what the process itself does not notice: it or the machine was stopped.
PATIENCE = 2.0
# Lark's option for a grammar that forces no tokens.
_NO_FORCING = '%llguidance {"no_forcing": true}\n'


class GrammarRefusal(ValueError):
    """Why a grammar is refused. It completes the sentence "the grammar can't be used: …"."""


Reply = tuple[dict[str, Any], bytes]
"""What the process answers (`trial.py`), and the mask that follows."""


class Prover:
    """One child process. `walks`: it follows one grammar and tries no others."""

    def __init__(self, vocabulary: bytes) -> None:
        """Start the process with the line of `Vocabulary.described`. Raises InternalError after
        START_SECONDS."""
        self._is_expired = self._is_closed = False
        self.walks = False
        python_path = [_SOURCE_FOLDER, os.environ.get("PYTHONPATH", "")]
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "omlx_server.text.grammar.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, python_path))},
            # A Ctrl-C in the server's terminal is the server's. In a session of its own the process
            # would not be nice to the server: Linux shares the processors between sessions first.
            process_group=0,
            bufsize=0,
        )
        assert self._child.stdin is not None and self._child.stdout is not None
        self._stdin, self._stdout = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._stdin, False)
        if self.ask(vocabulary, START_SECONDS) is None:
            self.close()
            raise InternalError("grammars can't be compiled: their process does not start")

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def prove(self, kind: str, text: str, *, seconds: float) -> str:
        """Try a grammar for `seconds` of processor time. Return its text in the engine's form.
        Raises GrammarRefusal."""
        return str(self._ask_or_refuse({"kind": kind, "text": text}, seconds)["grammar"])

    def walk(self, grammar: str, size: int, eos: list[int], *, seconds: float) -> None:
        """Make the process follow one proven grammar from now on. Raises GrammarRefusal."""
        self.walks = True
        self._ask_or_refuse({"walk": grammar, "size": size, "eos": eos}, seconds)

    def _ask_or_refuse(self, question: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        reply = self.ask({**question, "seconds": seconds}, _REAL_TIME_FACTOR * seconds)
        if reply is None:
            raise GrammarRefusal(self._cause_of_death(seconds))
        answer, _ = reply
        if answer["error"]:
            raise GrammarRefusal(answer["error"])
        return answer

    def ask(self, question: Mapping[str, Any] | bytes, seconds: float) -> Reply | None:
        """Return the reply to one line; None if the process died, which it does after `seconds`
        of real time."""
        if self._is_closed:  # its pipes' numbers may be others' by now
            return None
        deadline = time.monotonic() + seconds
        line = question if isinstance(question, bytes) else json.dumps(question).encode() + b"\n"
        try:
            self._write(line, deadline)
            return self._read_reply(deadline)
        except (OSError, EOFError):
            return None

    def _write(self, line: bytes, deadline: float) -> None:
        unwritten = memoryview(line)
        while unwritten:
            self._wait_for(self._stdin, select.POLLOUT, deadline)
            unwritten = unwritten[os.write(self._stdin, unwritten) :]

    def _read_reply(self, deadline: float) -> Reply:
        received, answer, mask_size = bytearray(), None, 0
        while answer is None or len(received) < mask_size:
            self._wait_for(self._stdout, select.POLLIN, deadline)
            chunk = os.read(self._stdout, 1 << 16)
            if not chunk:
                raise EOFError
            received += chunk
            if answer is None and b"\n" in chunk:
                line, _, received = received.partition(b"\n")
                answer = json.loads(line)
                mask_size = answer.pop("bytes")
        return answer, bytes(received)

    def _wait_for(self, pipe: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(pipe, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            self._is_expired = True
            self._child.kill()
            raise EOFError

    def _cause_of_death(self, seconds: float) -> str:
        ended_by = self._child.wait(_END_SECONDS)
        self.close()
        if self._is_expired or ended_by in (-signal.SIGPROF, -signal.SIGXCPU):
            return f"compiling it takes longer than {seconds:g} seconds"
        return "it is nested too deeply or needs too much memory"

    def close(self) -> None:
        self._is_closed = True
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._child.wait()


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
