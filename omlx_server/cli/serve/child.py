"""The server as a child of this process, for commands that start one and then talk to it.

It has a process group of its own: a Ctrl-C reaches us alone, and we end the server in order.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from omlx_server.errors import Unavailable

PROGRAM = (sys.executable, "-m", "omlx_server")
Server = subprocess.Popen[bytes]
_POLL_SECONDS = 0.2
# What the server needs beside the time that it gives to running answers.
_GRACE_SECONDS = 15


@contextmanager
def started(program: Sequence[str], arguments: Sequence[str], grace: float) -> Iterator[Server]:
    """What it says on stderr is seen; SIGTERM and SIGHUP to us are a Ctrl-C."""
    # SIGINT too: a shell that starts us in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    server = subprocess.Popen(
        [*program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield server
    finally:
        _end(server, grace)


def wait_until(is_ready: Callable[[], bool], server: Server) -> None:
    """However long the model takes to come. Raises Unavailable when the server has ended."""
    while not is_ready():
        if server.poll() is not None:
            raise Unavailable(f"the server ended with code {server.returncode} before it was ready")
        time.sleep(_POLL_SECONDS)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end(server: Server, grace: float) -> None:
    """SIGTERM, then time for running answers; a Ctrl-C meanwhile ends it at once."""
    server.terminate()
    try:
        server.wait(timeout=grace + _GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        server.kill()
        server.wait()
