"""New connections to rank 0, each met on its own thread, a bounded number at once: silent strangers
must not use up threads and descriptors."""

import socket
import threading
from collections.abc import Callable

from omlx_server.engine.cluster.link import hang_up

MOST = 32
"""Connections that are met at once."""


class NewConnections:
    """Calls `meet`, which owns the socket, with each socket and address."""

    def __init__(self, meet: Callable[[socket.socket, str], None]) -> None:
        self._meet = meet
        self._room = threading.BoundedSemaphore(MOST)
        self._lock = threading.Lock()
        self._peers = dict[int, socket.socket]()  # the eldest first
        self._count = 0

    def begin(self, peer: socket.socket, address: str) -> None:
        """Meet a new connection. With `MOST` under way the oldest is refused. One thread."""
        if not self._room.acquire(blocking=False):
            with self._lock:
                if self._peers:
                    hang_up(next(iter(self._peers.values())))
            self._room.acquire()
        self._count += 1
        with self._lock:
            self._peers[self._count] = peer
        args = (self._count, peer, address)
        threading.Thread(target=self._run, args=args, name="cluster-meets", daemon=True).start()

    def _run(self, number: int, peer: socket.socket, address: str) -> None:
        try:
            self._meet(peer, address)
        finally:
            with self._lock:
                del self._peers[number]
            self._room.release()
