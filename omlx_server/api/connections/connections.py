"""The open connections of a server, which share the descriptors of its process.

An address above its share loses its oldest idle connection, or the new one is refused, before any
request is read. A part is kept for /health, /admin and files. Runs on the asyncio thread.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from omlx_server import clock
from omlx_server.api.http.errors import envelope
from omlx_server.errors import BadRequest, NotNow, OmlxError, Unavailable

_log = logging.getLogger(__name__)
_LOG_PAUSE_SECONDS = 10.0
_ALWAYS_ANSWERED = ("/health", "/admin/")
_IPV4_BYTES = 4
DEFAULT_DESCRIPTORS = 1024
_RETRY_SECONDS = 5


class HeldConnection(Protocol):
    """A client's connection. `unread`: bytes of a body that came. `drop` closes it at once."""

    @property
    def address(self) -> bytes: ...
    @property
    def unread(self) -> int: ...
    def drop(self) -> None: ...


@dataclass(slots=True, eq=False)
class _AddressConnections:
    """The connections of one address; idle ones have no request, the oldest first."""

    open: int = 0
    idle: dict[HeldConnection, None] = field(default_factory=dict)


class Connections:
    """All connections. `ended` counts those that had to go, by reason."""

    def __init__(self, descriptors: int = DEFAULT_DESCRIPTORS) -> None:
        self._most = max(2, descriptors - descriptors // 4)
        self._by_address: dict[bytes, _AddressConnections] = {}
        self._open: set[HeldConnection] = set()
        self.ended = Counter({"idle": 0, "refused": 0, "busy": 0})
        self._unlogged: Counter[str] = Counter()
        self._logged_at = -_LOG_PAUSE_SECONDS

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unread(self) -> int:
        return sum(connection.unread for connection in self._open)

    def open(self, new: HeldConnection) -> bool:
        """Add a connection, closing an idle one if need be. Returns whether it may stay."""
        own = self._by_address.setdefault(new.address, _AddressConnections())
        own.open += 1
        own.idle[new] = None
        self._open.add(new)
        if own.open > self._share_of(own):
            return self._refuse_or_make_room(new, own)
        if len(self._open) > self._most:
            with_idle = (address for address in self._by_address.values() if address.idle)
            largest = max(with_idle, key=lambda address: address.open)
            return self._refuse_or_make_room(new, largest)
        return True

    def _refuse_or_make_room(self, new: HeldConnection, of_address: _AddressConnections) -> bool:
        """Close the oldest idle connection `of_address`; return False if that is `new` itself."""
        oldest = next(iter(of_address.idle))
        if oldest is new:
            self._count_and_log("refused", new.address)
            return False
        self._count_and_log("idle", oldest.address)
        self.close(oldest)
        oldest.drop()
        return True

    def _share_of(self, of_address: _AddressConnections) -> int:
        """Return half of what other addresses leave, at least an equal share."""
        others = len(self._open) - of_address.open
        return max((self._most - others) // 2, self._most // (len(self._by_address) + 1))

    def begin_request(self, connection: HeldConnection, path: str) -> bool:
        """Note a request for `path`. Returns whether it may be answered."""
        if connection not in self._open:
            return False
        of_address = self._by_address[connection.address]
        of_address.idle.pop(connection, None)
        share, busy = self._share_of(of_address), of_address.open - len(of_address.idle)
        if busy <= max(1, share - share // 8) or path.startswith(_ALWAYS_ANSWERED):
            return True
        self._count_and_log("busy", connection.address)
        return False

    def mark_idle(self, connection: HeldConnection) -> None:
        """Note that a connection has no request; it becomes the newest idle one."""
        if connection in self._open:
            idle = self._by_address[connection.address].idle
            idle.pop(connection, None)
            idle[connection] = None

    def close(self, connection: HeldConnection) -> None:
        if connection not in self._open:
            return
        self._open.remove(connection)
        of_address = self._by_address[connection.address]
        of_address.open -= 1
        of_address.idle.pop(connection, None)
        if not of_address.open:
            del self._by_address[connection.address]

    def _count_and_log(self, reason: str, address: bytes) -> None:
        self.ended[reason] += 1
        self._unlogged[reason] += 1
        now = clock.now()
        if now - self._logged_at < _LOG_PAUSE_SECONDS:
            return
        counts = ", ".join(f"{count} {reason}" for reason, count in self._unlogged.items())
        self._logged_at = now
        self._unlogged.clear()
        _log.warning(
            "clients have more connections than descriptors are left: ended %s, the last one of %s",
            counts,
            _address_text(address),
        )


def _address_text(address: bytes) -> str:
    if not address:
        return "a Unix socket"
    is_ipv4 = len(address) == _IPV4_BYTES
    return str(ip_address(address if is_ipv4 else address + bytes(8)))  # of IPv6 8 bytes are known


class HeadTooLarge(BadRequest):
    status = 431
    code = "headers_too_large"
    quotes_request = False


class NoHttp(BadRequest):
    """The client has sent something other than HTTP."""

    quotes_request = False


class TooManyRequests(Unavailable):
    code = "too_many_connections"


def head_too_large(most_bytes: int) -> HeadTooLarge:
    return HeadTooLarge(f"the request line and headers may have {most_bytes} bytes at most")


def too_many_connections() -> TooManyRequests:
    return TooManyRequests("too many connections are busy", retry_after=_RETRY_SECONDS)


def reply(error: OmlxError) -> bytes:
    """Return a whole HTTP response, after which the connection ends."""
    body = orjson.dumps(envelope(error))
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n"
    retry = b"retry-after: %d\r\n" % error.retry_after if isinstance(error, NotNow) else b""
    return STATUS_LINE[error.status] + head % len(body) + retry + b"\r\n" + body
