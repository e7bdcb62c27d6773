"""Runs the server as a child process in its own process group, so that Ctrl-C reaches only this
process."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from omlx_server.errors import Unavailable

# -P: without it, a file random.py of the working directory would be run.
PROGRAM = (sys.executable, "-P", "-m", "omlx_server")
Server = subprocess.Popen[bytes]
_POLL_SECONDS = 0.2
# Seconds in which the server ends after the grace of running answers.
_GRACE_SECONDS = 15


@contextmanager
def started(program: Sequence[str], arguments: Sequence[str], grace: float) -> Iterator[Server]:
    """Start the server, and end it with the `with`: running answers have `grace` seconds. From
    here on SIGTERM and SIGHUP raise KeyboardInterrupt."""
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


def wait_until_ready(is_ready: Callable[[], bool], server: Server) -> bool:
    """Wait without limit. Return False if the server ended with exit code 1 or 2: it has printed
    the reason. Raises Unavailable if it ended otherwise."""
    while not is_ready():
        if server.poll() in (1, 2):
            return False
        if server.returncode is not None:
            raise Unavailable(f"the server ended with code {server.returncode} before it was ready")
        time.sleep(_POLL_SECONDS)
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end(server: Server, grace: float) -> None:
    server.terminate()
    try:
        server.wait(timeout=grace + _GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        server.kill()
        server.wait()
