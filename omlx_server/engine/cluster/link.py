"""The connection between rank 0 and another rank, with loss detection. Both ends prove the
cluster's secret (HMAC). Nothing is encrypted: the network must be trusted."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from typing import Any

from omlx_server.core.cluster.handshake import Alive
from omlx_server.engine.cluster import wire
from omlx_server.errors import one_line

_log = logging.getLogger(__name__)
_ALIVE_SECONDS = 1.0
LOST_SECONDS = 5.0
FORMING_SECONDS = 30.0
"""Patience while MLX connects the ranks and holds the GIL."""
_POLL_SECONDS = 0.001
_AUTHENTICATION_SECONDS = 5.0
_LONGEST = 256 << 20  # bytes of a message


class LinkFailed(Exception):
    """The other end can't be reached, does not know the secret, or has closed."""


class Link:
    """An authenticated connection. `lost` is called once, on another thread, when the other end
    has closed or is silent for `patience` seconds."""

    def __init__(
        self, peer: socket.socket, connection: Connection, lost: Callable[[str], None]
    ) -> None:
        self._peer = peer
        self._connection = connection
        self._lost = lost
        self._threads = list[threading.Thread]()
        self._out: SimpleQueue[object] = SimpleQueue()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._alive: Callable[[], Alive] = Alive
        self._told = self._sent = 0
        self.last_alive = Alive()
        self.patience = LOST_SECONDS

    def start(self, take: Callable[[Any], None], alive: Callable[[], Alive] = Alive) -> None:
        """Begin to listen and to send. `take` gets messages on a thread of the link; `alive` makes
        signs of life."""
        self._alive, self._last = alive, time.monotonic()
        work = {"listens": lambda: self._listen(take), "sends": self._send, "watches": self._watch}
        self._threads = [
            threading.Thread(target=each, name=f"cluster-{name}", daemon=True)
            for name, each in work.items()
        ]
        for thread in self._threads:
            thread.start()

    def tell(self, message: object) -> None:
        """Queue a message; dropped on a lost link. Any thread."""
        with self._lock:
            self._told += 1
        self._out.put(message)

    def wait_until_sent(self) -> None:
        """Wait until all is sent, before the GIL is held for long."""
        while self._sent < self._told and not self._ended.is_set():
            time.sleep(_POLL_SECONDS)

    def say(self, message: object) -> None:
        """Send a message at once, before `start`. Raises LinkFailed."""
        try:
            self._connection.send_bytes(wire.written(message))
        except OSError as error:
            raise LinkFailed(f"the connection has ended: {one_line(error)}") from error

    def hear(self, seconds: float = _AUTHENTICATION_SECONDS) -> Any:
        """Return the next message, before `start`. Raises LinkFailed when none comes in time."""
        with _hanging_up_after(seconds, self._peer) as late:
            try:
                return wire.read(self._connection.recv_bytes(_LONGEST))
            except (OSError, EOFError, wire.BadMessage) as error:
                if late.is_set():
                    raise LinkFailed(f"no word came for {seconds:.0f} s") from error
                raise LinkFailed(f"the connection has ended: {one_line(error)}") from error

    def wait_until_ended(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def close(self) -> None:
        """End the connection without calling `lost`."""
        self._ended.set()
        self._hang_up()
        if not self._threads:
            self._release()

    # -- inside --------------------------------------------------------------------------

    def _listen(self, take: Callable[[Any], None]) -> None:
        try:
            while not self._ended.is_set():
                message = wire.read(self._connection.recv_bytes(_LONGEST))
                self._last = time.monotonic()
                if isinstance(message, Alive):
                    self.last_alive = message
                else:
                    take(message)
        except (OSError, EOFError):
            self._end("the connection was closed")
        except wire.BadMessage as error:
            self._end(str(error))

    def _send(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    message = self._out.get(timeout=_ALIVE_SECONDS)
                except Empty:
                    self._connection.send_bytes(wire.written(self._alive()))
                    continue
                if message is not None:
                    self._connection.send_bytes(wire.written(message))
                self._sent += 1
        except OSError:
            self._end("the connection was closed")

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(_ALIVE_SECONDS / 2):
            now = time.monotonic()
            if now - before > LOST_SECONDS / 2:
                self._last = now  # this process itself was stopped
            elif now - self._last > self.patience:
                self._end(f"no sign of life for {self.patience:.0f} s")
            before = now
        for other in self._threads[:2]:
            other.join()
        self._release()

    def _end(self, why: str) -> None:
        with self._lock:  # one of two threads reports the end
            if self._ended.is_set():
                return
            self._ended.set()
        self._hang_up()
        self._lost(why)

    def _hang_up(self) -> None:
        self._out.put(None)
        hang_up(self._peer)

    def _release(self) -> None:
        self._connection.close()
        self._peer.close()


def connect(address: tuple[str, int], secret: bytes, lost: Callable[[str], None]) -> Link:
    try:
        peer = socket.create_connection(address, timeout=_AUTHENTICATION_SECONDS)
    except OSError as error:
        raise LinkFailed(f"nobody listens there: {one_line(error)}") from error
    return authenticated(peer, secret, lost, first=False)


def authenticated(
    peer: socket.socket,
    secret: bytes,
    lost: Callable[[str], None],
    *,
    first: bool,
    seconds: float = _AUTHENTICATION_SECONDS,
) -> Link:
    """Return a link once both ends have proved the secret; the acceptor challenges `first`.
    Raises LinkFailed, with the socket closed."""
    peer.settimeout(None)
    try:
        connection = Connection(os.dup(peer.fileno()))
    except OSError as error:  # this process has no descriptor left
        peer.close()
        raise LinkFailed(f"it can't be authenticated: {one_line(error)}") from error
    steps = (deliver_challenge, answer_challenge)
    with _hanging_up_after(seconds, peer) as late:
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for step in steps if first else steps[::-1]:
                step(connection, secret)
        except (AuthenticationError, OSError, EOFError, AssertionError, ValueError) as error:
            connection.close()
            peer.close()
            why = "it does not know the secret of this cluster"
            if late.is_set():
                why = f"it did not prove within {seconds:.0f} s that it knows the secret"
            raise LinkFailed(why) from error
    return Link(peer, connection, lost)


def hang_up(peer: socket.socket) -> None:
    """Shut a connection down, which wakes its threads. Any thread."""
    with suppress(OSError):  # it has ended already
        peer.shutdown(socket.SHUT_RDWR)


@contextmanager
def _hanging_up_after(seconds: float, peer: socket.socket) -> Iterator[threading.Event]:
    """The event tells whether it hung up."""
    late = threading.Event()

    def end() -> None:
        late.set()
        hang_up(peer)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
