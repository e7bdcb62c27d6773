"""The open connections of a server, which share the descriptors of its process.

An address above its share loses its oldest idle connection, or the new one is refused. A part is
kept for /health, /admin and files. Refusals are answered before any request is read. Runs on the
asyncio thread.
"""

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from omlx_server.api.http.errors import envelope
from omlx_server.errors import BadRequest, NotNow, OmlxError, Unavailable

_log = logging.getLogger(__name__)
_LOG_PAUSE_SECONDS = 10.0
_VITAL = ("/health", "/admin/")
_IPV4_BYTES = 4
DEFAULT_DESCRIPTORS = 1024
_RETRY_SECONDS = 5


class Held(Protocol):
    """A client's connection, with `unread` bytes of a body. `drop` closes it at once."""

    @property
    def address(self) -> bytes: ...
    @property
    def unread(self) -> int: ...
    def drop(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Place:
    """The connections of one address; idle ones have no request, the oldest first."""

    open: int = 0
    idle: dict[Held, None] = field(default_factory=dict)


class Connections:
    """All connections. `ended` counts those that had to go, by reason."""

    def __init__(self, descriptors: int = DEFAULT_DESCRIPTORS) -> None:
        self._most = max(2, descriptors - descriptors // 4)
        self._places: dict[bytes, _Place] = {}
        self._open: set[Held] = set()
        self.ended = Counter({"idle": 0, "refused": 0, "busy": 0})
        self._untold: Counter[str] = Counter()
        self._told_at = -_LOG_PAUSE_SECONDS

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unread(self) -> int:
        return sum(one.unread for one in self._open)

    def open(self, new: Held) -> bool:
        """Add a connection, closing an idle one if need be. Returns whether it may stay."""
        place = self._places.setdefault(new.address, _Place())
        place.open += 1
        place.idle[new] = None
        self._open.add(new)
        if place.open > self._share(place):
            return self._close_oldest(place, new)
        if len(self._open) > self._most:
            full = (one for one in self._places.values() if one.idle)
            return self._close_oldest(max(full, key=lambda one: one.open), new)
        return True

    def begin(self, one: Held, path: str) -> bool:
        """Note a request for `path`. Returns whether it may be answered."""
        if one not in self._open:
            return False
        place = self._places[one.address]
        place.idle.pop(one, None)
        share, busy = self._share(place), place.open - len(place.idle)
        if busy <= max(1, share - share // 8) or path.startswith(_VITAL):
            return True
        self._tell("busy", one.address)
        return False

    def rest(self, one: Held) -> None:
        if one in self._open:
            idle = self._places[one.address].idle
            idle.pop(one, None)
            idle[one] = None

    def close(self, one: Held) -> None:
        if one not in self._open:
            return
        self._open.remove(one)
        place = self._places[one.address]
        place.open -= 1
        place.idle.pop(one, None)
        if not place.open:
            del self._places[one.address]

    def _share(self, place: _Place) -> int:
        """Return half of what other addresses leave, at least an equal share."""
        others = len(self._open) - place.open
        return max((self._most - others) // 2, self._most // (len(self._places) + 1))

    def _close_oldest(self, place: _Place, new: Held) -> bool:
        oldest = next(iter(place.idle))
        self._tell("refused" if oldest is new else "idle", oldest.address)
        if oldest is not new:
            self.close(oldest)
            oldest.drop()
        return oldest is not new

    def _tell(self, reason: str, address: bytes) -> None:
        self.ended[reason] += 1
        self._untold[reason] += 1
        now = time.monotonic()
        if now - self._told_at < _LOG_PAUSE_SECONDS:
            return
        words = ", ".join(f"{count} {reason}" for reason, count in self._untold.items())
        self._told_at = now
        self._untold.clear()
        _log.warning(
            "clients have more connections than descriptors are left: ended %s, the last one of %s",
            words,
            _shown(address),
        )


def _shown(address: bytes) -> str:
    if not address:
        return "a Unix socket"
    return str(ip_address(address if len(address) == _IPV4_BYTES else address + bytes(8)))


class HeadTooLarge(BadRequest):
    status = 431
    code = "headers_too_large"
    quotes_request = False


class NoHttp(BadRequest):
    """The client has sent something other than HTTP."""

    quotes_request = False


class TooManyRequests(Unavailable):
    code = "too_many_connections"


def too_large(most_bytes: int) -> HeadTooLarge:
    return HeadTooLarge(f"the request line and headers may have {most_bytes} bytes at most")


def too_many() -> TooManyRequests:
    return TooManyRequests("too many connections are busy", retry_after=_RETRY_SECONDS)


def reply(error: OmlxError) -> bytes:
    """Return a whole HTTP response, after which the connection ends."""
    body = orjson.dumps(envelope(error))
    retry = b"retry-after: %d\r\n" % error.retry_after if isinstance(error, NotNow) else b""
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n"
    return STATUS_LINE[error.status] + head % len(body) + retry + b"\r\n" + body
