"""Servers that are forked from a process which has imported their modules. The imports are nine
tenths of what a server with a tiny model computes until it is ready, and tests start hundreds."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

NO_HUB = "http://127.0.0.1:9"  # whatever the network is like; a test that wants one starts it
_REPO = Path(__file__).parent.parent.parent


def start(
    words: Sequence[str],
    directory: Path,
    environ: Mapping[str, str],
    output: BinaryIO,
    *,
    forked: bool = True,
) -> "subprocess.Popen[bytes] | Forked":
    """`omlx-server WORDS`, which writes to `output`. If `forked`, it is, unless `environ` has what
    other servers have not: libraries read their variables when they are imported. A Mac's
    frameworks can't be forked."""
    if (
        forked
        and sys.platform == "linux"
        and _of_imports({**environ, "HOME": _PLAIN.get("HOME", "")}) == _PLAIN
    ):
        return Forked(words, directory, environ, output)
    return subprocess.Popen(
        [sys.executable, "-m", "omlx_server", *words],
        cwd=directory,
        env=dict(environ),
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def _of_imports(environ: Mapping[str, str]) -> dict[str, str]:
    """Without our own settings, which a server reads when it begins, without pytest's, which tell
    of a test, without those of a library that is imported later, and without what modules set when
    they are imported."""
    others = ("OMLX_", "PYTEST_", "OTEL_", "OPENBLAS_", "TOKENIZERS_", "TRANSFORMERS_NO_", "XPC_")
    return {k: v for k, v in environ.items() if not k.startswith(others)}


def environment(environ: Mapping[str, str], **own: str) -> dict[str, str]:
    """That of a server whose own settings are `own`: without those of the tests, and without a
    hub, whatever the network is like. Our code comes after what a test wants to be there."""
    plain = _of_imports(environ)
    path = os.pathsep.join(filter(None, (plain.get("PYTHONPATH"), str(_REPO))))
    return {"HF_ENDPOINT": NO_HUB, **plain, "PYTHONPATH": path, **own}


class Forked:
    """`omlx-server WORDS` as a process, with what tests use of `subprocess.Popen`."""

    def __init__(
        self, words: Sequence[str], directory: Path, environ: Mapping[str, str], output: BinaryIO
    ) -> None:
        order = json.dumps({"words": words, "directory": str(directory), "environ": dict(environ)})
        self._channel, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_forker(), [order.encode()], [output.fileno(), theirs.fileno()])
        self._told = self._channel.makefile("r")
        self.pid = int(self._told.readline())
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self._ended_in(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired after so many seconds."""
        code = self._ended_in(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"server {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended_in(self, seconds: float | None) -> int | None:
        if self._code is None and select.select([self._channel], [], [], seconds)[0]:
            self._code = int(self._told.readline())
            self._told.close()
            self._channel.close()
        return self._code


@cache
def _forker() -> socket.socket:
    """Started with the first server; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.api.forker"], stdin=theirs.fileno(), env=_PLAIN
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


_PLAIN = environment(os.environ)
