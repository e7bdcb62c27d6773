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
_LONGEST_MESSAGE = 256 << 20  # bytes


class LinkFailed(Exception):
    """The other end can't be reached, does not know the secret, or has closed."""


class Link:
    """An authenticated connection. `lost` is called once when the other end closes or is silent."""

    def __init__(
        self, peer: socket.socket, connection: Connection, lost: Callable[[str], None]
    ) -> None:
        self._peer = peer
        self._connection = connection
        self._lost = lost
        self._threads = list[threading.Thread]()
        self._outbox: SimpleQueue[object] = SimpleQueue()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._heard_at = time.monotonic()
        self._make_alive: Callable[[], Alive] = Alive
        self._queued_count = self._sent_count = 0
        self.last_alive = Alive()
        self.patience = LOST_SECONDS

    def start(self, take: Callable[[Any], None], alive: Callable[[], Alive] = Alive) -> None:
        """Begin to listen and send. `take` gets messages; `alive` makes signs of life."""
        self._make_alive, self._heard_at = alive, time.monotonic()
        targets = {
            "listens": lambda: self._listen(take),
            "sends": self._send_queued,
            "watches": self._watch_for_silence,
        }
        self._threads = [
            threading.Thread(target=target, name=f"cluster-{name}", daemon=True)
            for name, target in targets.items()
        ]
        for thread in self._threads:
            thread.start()

    def tell(self, message: object) -> None:
        """Queue a message; dropped on a lost link. Any thread."""
        with self._lock:
            self._queued_count += 1
        self._outbox.put(message)

    def wait_until_sent(self) -> None:
        """Wait until all is sent, before the GIL is held for long."""
        while self._sent_count < self._queued_count and not self._ended.is_set():
            time.sleep(_POLL_SECONDS)

    def send_now(self, message: object) -> None:
        """Send a message at once, before `start`. Raises LinkFailed."""
        try:
            self._connection.send_bytes(wire.encode(message))
        except OSError as error:
            raise LinkFailed(f"the connection has ended: {one_line(error)}") from error

    def receive(self, seconds: float = _AUTHENTICATION_SECONDS) -> Any:
        """Return the next message, before `start`. Raises LinkFailed when none comes in time."""
        with _hanging_up_after(seconds, self._peer) as has_hung_up:
            try:
                return wire.decode(self._connection.recv_bytes(_LONGEST_MESSAGE))
            except (OSError, EOFError, wire.BadMessage) as error:
                if has_hung_up.is_set():
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

    def _listen(self, take: Callable[[Any], None]) -> None:
        try:
            while not self._ended.is_set():
                message = wire.decode(self._connection.recv_bytes(_LONGEST_MESSAGE))
                self._heard_at = time.monotonic()
                if isinstance(message, Alive):
                    self.last_alive = message
                else:
                    take(message)
        except (OSError, EOFError):
            self._report_loss("the connection was closed")
        except wire.BadMessage as error:
            self._report_loss(str(error))

    def _send_queued(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    message = self._outbox.get(timeout=_ALIVE_SECONDS)
                except Empty:
                    self._connection.send_bytes(wire.encode(self._make_alive()))
                    continue
                if message is not None:
                    self._connection.send_bytes(wire.encode(message))
                self._sent_count += 1
        except OSError:
            self._report_loss("the connection was closed")

    def _watch_for_silence(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(_ALIVE_SECONDS / 2):
            now = time.monotonic()
            if now - before > LOST_SECONDS / 2:
                self._heard_at = now  # this process itself was stopped
            elif now - self._heard_at > self.patience:
                self._report_loss(f"no sign of life for {self.patience:.0f} s")
            before = now
        for other in self._threads[:2]:  # those that use the connection
            other.join()
        self._release()

    def _report_loss(self, why: str) -> None:
        with self._lock:  # one of two threads reports the end
            if self._ended.is_set():
                return
            self._ended.set()
        self._hang_up()
        self._lost(why)

    def _hang_up(self) -> None:
        self._outbox.put(None)
        hang_up(self._peer)

    def _release(self) -> None:
        self._connection.close()
        self._peer.close()


def connect(address: tuple[str, int], secret: bytes, lost: Callable[[str], None]) -> Link:
    try:
        peer = socket.create_connection(address, timeout=_AUTHENTICATION_SECONDS)
    except OSError as error:
        raise LinkFailed(f"nobody listens there: {one_line(error)}") from error
    return authenticated(peer, secret, lost, challenges_first=False)


def authenticated(
    peer: socket.socket,
    secret: bytes,
    lost: Callable[[str], None],
    *,
    challenges_first: bool,
    seconds: float = _AUTHENTICATION_SECONDS,
) -> Link:
    """Return a link once both ends have proved the secret; the acceptor `challenges_first`.
    Raises LinkFailed, with the socket closed."""
    peer.settimeout(None)
    try:
        connection = Connection(os.dup(peer.fileno()))
    except OSError as error:  # this process has no descriptor left
        peer.close()
        raise LinkFailed(f"it can't be authenticated: {one_line(error)}") from error
    with _hanging_up_after(seconds, peer) as has_hung_up:
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if challenges_first:
                deliver_challenge(connection, secret)
                answer_challenge(connection, secret)
            else:
                answer_challenge(connection, secret)
                deliver_challenge(connection, secret)
        except (AuthenticationError, OSError, EOFError, AssertionError, ValueError) as error:
            connection.close()
            peer.close()
            why = "it does not know the secret of this cluster"
            if has_hung_up.is_set():
                why = f"it did not prove within {seconds:.0f} s that it knows the secret"
            raise LinkFailed(why) from error
    return Link(peer, connection, lost)


def hang_up(peer: socket.socket) -> None:
    """Shut a connection down, which wakes its threads. Any thread."""
    with suppress(OSError):  # it has ended already
        peer.shutdown(socket.SHUT_RDWR)


@contextmanager
def _hanging_up_after(seconds: float, peer: socket.socket) -> Iterator[threading.Event]:
    """Hang up if the context takes longer; the event tells whether it did."""
    has_hung_up = threading.Event()

    def end() -> None:
        has_hung_up.set()
        hang_up(peer)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield has_hung_up
    finally:
        timer.cancel()
