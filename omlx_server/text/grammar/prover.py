"""The child process that tries grammars out (`trial.py`). Owned by one thread at a time."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omlx_server.errors import InternalError

START_SECONDS = 60.0
# The most real time of a trial, in its seconds of processor time.
_REAL_TIME_FACTOR = 10
_END_SECONDS = 10
_SOURCE_FOLDER = str(Path(__file__).parents[3])


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
