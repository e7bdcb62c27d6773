"""Ends MLX's wait for a missing rank while it connects the ranks of a ring. `mx.distributed.init`
holds the GIL and waits for ever for its left neighbour. This file, run as a process, connects in
its place after some seconds, and listens in the right one's if that was on this machine. Source:
MLX, mlx/distributed/ring/ring.cpp. Standard library only, for a fast start."""

import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress

PATIENCE_SECONDS = 6.0  # connecting takes one or two
_EXIT_LATE = 7  # exit code
_KNOCK_SECONDS = 0.05


class Unblocking:
    """A context with the helper process, given "IP:port"s of this rank and its right neighbour."""

    def __init__(
        self, own: Sequence[str], right: Sequence[str], seconds: float = PATIENCE_SECONDS
    ) -> None:
        words = (str(seconds), ",".join(own), ",".join(right))
        self._command = (sys.executable, "-I", "-S", __file__, *words)
        self.was_late = False  # MLX still waited after these seconds, so its group is unusable

    def __enter__(self) -> "Unblocking":
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.was_late = self._process.wait() == _EXIT_LATE


def _connect_when_late(seconds: float, own: Sequence[str], right: Sequence[str]) -> int:
    if _stdin_closes_within(seconds):
        return 0
    with ExitStack() as stack:
        for address in right:
            with suppress(OSError):  # it is another machine's, or the neighbour is there
                stack.enter_context(socket.create_server(_split_address(address), backlog=1))
        while not _stdin_closes_within(
            _KNOCK_SECONDS
        ):  # MLX listens at one address after the other
            for address in own:
                with suppress(OSError):
                    socket.create_connection(_split_address(address), _KNOCK_SECONDS).close()
    return _EXIT_LATE


def _stdin_closes_within(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _split_address(address: str) -> tuple[str, int]:
    ip, _, port = address.rpartition(":")
    return ip, int(port)


if __name__ == "__main__":
    sys.exit(_connect_when_late(float(sys.argv[1]), *(words.split(",") for words in sys.argv[2:])))
