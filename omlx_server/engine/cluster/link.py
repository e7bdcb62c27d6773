"""The connection between rank 0 and another rank: messages both ways, and word when it is lost.

Both ends prove that they know the secret of the cluster before anything else is said (HMAC
challenges of multiprocessing.connection). What is sent is not encrypted, as the activations of the
model are not either: the network must be trusted.
"""

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
"""After so many seconds without a sign of life a rank counts as lost."""
FORMING_SECONDS = 30.0
"""The same while MLX connects the ranks: it holds the GIL, so that no sign of life can be sent."""
_POLL_SECONDS = 0.001
_AUTHENTICATION_SECONDS = 5.0
_LONGEST = 256 << 20  # bytes of a message


class LinkFailed(Exception):
    """No link: the other end can't be reached, does not know the secret, or has ended the
    connection."""


class Link:
    """A `connection` over the socket `peer`, whose other end knows the secret. Messages go out in
    the order of `tell`, which never waits. `lost` is called once, on another thread, with the
    reason in one line, when the other end has closed it, or gave no sign of life for 5 seconds.
    The descriptors are closed once no thread of the link uses them any more."""

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
        """Seconds without a sign of life after which the other end counts as lost."""

    def start(self, take: Callable[[Any], None], alive: Callable[[], Alive] = Alive) -> None:
        """Begin to listen and to send. `take` gets each message, on a thread of the link; `alive`
        makes the sign of life that is sent after each second without another message."""
        self._alive, self._last = alive, time.monotonic()
        work = {"listens": lambda: self._listen(take), "sends": self._send, "watches": self._watch}
        self._threads = [
            threading.Thread(target=each, name=f"cluster-{name}", daemon=True)
            for name, each in work.items()
        ]
        for thread in self._threads:
            thread.start()

    def tell(self, message: object) -> None:
        """Send a message. Any thread; it is not sent where the link is lost."""
        with self._lock:
            self._told += 1
        self._out.put(message)

    def wait_until_sent(self) -> None:
        """Wait until all messages are sent, or the link is lost. For who is about to hold the GIL
        for long: no thread could send them then."""
        while self._sent < self._told and not self._ended.is_set():
            time.sleep(_POLL_SECONDS)

    def say(self, message: object) -> None:
        """Send a message at once, before `start`. Raises LinkFailed when the other end is gone."""
        try:
            self._connection.send_bytes(wire.written(message))
        except OSError as error:
            raise LinkFailed(f"the connection has ended: {one_line(error)}") from error

    def hear(self, seconds: float = _AUTHENTICATION_SECONDS) -> Any:
        """The next message, before `start`. Raises LinkFailed when no whole one comes in so many
        seconds, or what comes is none."""
        with _hanging_up_after(seconds, self._peer) as late:
            try:
                return wire.read(self._connection.recv_bytes(_LONGEST))
            except (OSError, EOFError, wire.BadMessage) as error:
                if late.is_set():
                    raise LinkFailed(f"no word came for {seconds:.0f} s") from error
                raise LinkFailed(f"the connection has ended: {one_line(error)}") from error

    def wait_until_ended(self, seconds: float) -> None:
        """Wait until the other end has closed the connection, for so many seconds at most."""
        self._ended.wait(seconds)

    def close(self) -> None:
        """End the connection. `lost` is not called."""
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
        with self._lock:  # of two threads that see the end, one tells of it
            if self._ended.is_set():
                return
            self._ended.set()
        self._hang_up()
        self._lost(why)

    def _hang_up(self) -> None:
        """Have the threads that send and listen end."""
        self._out.put(None)
        hang_up(self._peer)

    def _release(self) -> None:
        self._connection.close()
        self._peer.close()


def connect(address: tuple[str, int], secret: bytes, lost: Callable[[str], None]) -> Link:
    """Connect to rank 0 at this address. Raises LinkFailed where nobody listens there, or
    the secret is another."""
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
    """The link over a new socket, once both ends have proved that they know the secret; who
    accepted the connection asks `first`. Raises LinkFailed where that is not so in so many seconds;
    the socket is closed then."""
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
    """End a connection both ways. Who reads from it or writes to it on another thread gets an
    error at once; closing its descriptor would not wake them. Any thread."""
    with suppress(OSError):  # it has ended already
        peer.shutdown(socket.SHUT_RDWR)


@contextmanager
def _hanging_up_after(seconds: float, peer: socket.socket) -> Iterator[threading.Event]:
    """Hang up if the block takes more than so many seconds. The event is set when that was so."""
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
