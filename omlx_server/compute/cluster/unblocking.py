"""Ends a wait of MLX for a rank that is gone, while MLX connects the ranks of a ring.

`mx.distributed.init` holds the GIL. It waits for ever for the connection of its left neighbour
(`accept`), and tries for 31 seconds to reach the right one. So where a neighbour is gone no thread
of this process could notice it, nor answer a request. A small process beside this one, which runs
this file, waits a few seconds; then it connects in the place of the left neighbour, and listens in
the place of the right one if that was on this machine. So `init` returns.

Source: MLX, mlx/distributed/ring/ring.cpp (CONN_ATTEMPTS, CONN_WAIT). Standard library only: the
process has to start in no time.
"""

import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress

PATIENCE_SECONDS = 6.0
"""Ranks that are there are connected within one second or two."""

_LATE = 7  # exit code
_KNOCK_SECONDS = 0.05


class Unblocking:
    """The process beside this one for one `with`, in which MLX connects. `own` and `right` are the
    "IP:port" at which this rank and its right neighbour are to be reached."""

    def __init__(
        self, own: Sequence[str], right: Sequence[str], seconds: float = PATIENCE_SECONDS
    ) -> None:
        words = (str(seconds), ",".join(own), ",".join(right))
        self._command = (sys.executable, "-I", "-S", __file__, *words)
        self.was_late = False
        """Afterwards: whether MLX was still waiting after so many seconds, so that what it gave is
        no group of ranks."""

    def __enter__(self) -> "Unblocking":
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.was_late = self._process.wait() == _LATE


def _run(seconds: float, own: Sequence[str], right: Sequence[str]) -> int:
    """What the process does; it ends with its standard input. Returns its exit code."""
    if _ends_within(seconds):
        return 0
    with ExitStack() as stack:
        for address in right:
            with suppress(OSError):  # it is another machine's, or the neighbour is there
                stack.enter_context(socket.create_server(_parted(address), backlog=1))
        while not _ends_within(_KNOCK_SECONDS):  # MLX listens at one address after the other
            for address in own:
                with suppress(OSError):
                    socket.create_connection(_parted(address), _KNOCK_SECONDS).close()
    return _LATE


def _ends_within(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _parted(address: str) -> tuple[str, int]:
    ip, _, port = address.rpartition(":")
    return ip, int(port)


if __name__ == "__main__":
    sys.exit(_run(float(sys.argv[1]), *(words.split(",") for words in sys.argv[2:])))
