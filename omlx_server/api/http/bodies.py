"""Bodies while they are received: one bound for the bytes of all, a least rate for each.

A body counts until it is parsed. Its first 64 KB come at once; the rest needs room, which it gets

- if it needs at most half of what is free, so that large bodies leave room for small ones;
- if its client stays within an equal share: younger bodies of clients above theirs are refused;
- else when others have left, or it is refused after a while.

Runs on the asyncio thread.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

from omlx_server import clock
from omlx_server.errors import OmlxError, RequestTimeout, Unavailable

SMALL = 64 * 2**10
_LEAST_RATE = 64_000  # bytes a second
_MOST_WAITING = 32  # bodies of one client
_MOST_BYTES = 256 * 2**20


def most_body_bytes(memory_limit: int) -> int:
    """Return the most bytes of all bodies for a memory limit in bytes."""
    return min(_MOST_BYTES, memory_limit // 16)


class TooManyBodies(Unavailable):
    code = "too_many_bodies"


class RequestBody:
    """One body that is read or parsed. Bytes: `held` have come, `taken` are reserved."""

    def __init__(self, bodies: "Bodies", client: bytes) -> None:
        self.client = client
        self.held = self.taken = 0
        self._bodies = bodies
        self._received = 0
        self._alarm: clock.Alarm | None = None  # only while it is received
        self._began = 0.0
        self._is_cut = False

    @property
    def can_be_cut(self) -> bool:
        return self._alarm is not None and not self._alarm.has_rung and not self._is_cut

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Receive the body within this. Raises RequestTimeout, or TooManyBodies if it is cut."""
        self._began = clock.now()
        try:
            async with clock.timeout(self._bodies.seconds) as self._alarm:
                yield
        except TimeoutError:
            raise self._bodies.refusal("cut" if self._is_cut else "slow") from None
        finally:
            self._alarm = None

    async def add(self, count: int, whole: int) -> None:
        """Note `count` new bytes of `whole`, and wait for room. Raises TooManyBodies."""
        self.held += count
        self._received += count
        if self.held > SMALL:
            await self.make_room(max(whole, self.held))
        if self._alarm is not None and not self._is_cut:
            seconds = self._bodies.seconds + self._received / _LEAST_RATE
            self._alarm.start(self._began + seconds - clock.now())

    async def make_room(self, size: int) -> None:
        """Wait until there is room for `size` bytes in all. Raises as `add`."""
        if self.taken >= size or self._is_cut:
            return
        wait_began = clock.now()
        if self._alarm is not None:
            self._alarm.stop()
        await self._bodies.wait_for_room(self, size)
        # The wait is not the client's fault: its least rate does not count it.
        self._began += clock.now() - wait_began

    def replace_size(self, size: int) -> None:
        """Count the decoded bytes instead of those that came."""
        self.held = size
        self.taken = size if size > SMALL else 0

    def cut(self) -> None:
        """Refuse the rest of the body: its reader gets TooManyBodies."""
        self._is_cut, self.taken = True, 0
        if self._alarm is not None:
            self._alarm.start(0)


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    """A body that waits until `size` bytes are reserved for it."""

    body: RequestBody
    size: int
    room: "asyncio.Future[None]"


class Bodies:
    """All bodies that are received now. `refused` counts by reason: `slow`, `full`, `cut`."""

    def __init__(self, most: int = _MOST_BYTES, seconds: float = 10.0) -> None:
        """`most` bounds the bytes of all, but one body alone may be larger. A body may take
        `seconds` and the time of its bytes by the least rate; `seconds` bound the wait for room."""
        self.seconds = seconds
        self.refused = Counter({"slow": 0, "full": 0, "cut": 0})
        self._most_bytes = most
        self._bodies: list[RequestBody] = []  # the oldest first
        self._waiting: list[_Wait] = []

    @property
    def held(self) -> int:
        return sum(body.held for body in self._bodies)

    @contextmanager
    def begin(self, client: bytes) -> Iterator[RequestBody]:
        body = RequestBody(self, client)
        self._bodies.append(body)
        try:
            yield body
        finally:
            self._bodies.remove(body)
            self._wake_those_with_room()

    async def wait_for_room(self, body: RequestBody, size: int) -> None:
        if self._try_to_reserve(body, size):
            return
        if sum(wait.body.client == body.client for wait in self._waiting) >= _MOST_WAITING:
            raise self.refusal("full")
        wait = _Wait(body, size, asyncio.get_running_loop().create_future())
        self._waiting.append(wait)
        try:
            async with clock.timeout(self.seconds):
                await wait.room
        except TimeoutError:
            raise self.refusal("full") from None
        finally:
            self._waiting.remove(wait)

    def refusal(self, reason: str) -> OmlxError:
        """Return the error for a body that is refused, and count it."""
        self.refused[reason] += 1
        if reason == "slow":
            return RequestTimeout("the body came too slowly")
        return TooManyBodies(
            "too many large bodies are on their way", retry_after=max(1, round(self.seconds))
        )

    def _try_to_reserve(self, body: RequestBody, size: int) -> bool:
        """Reserve `size` bytes for `body` if there is room; return whether there is."""
        others = [other for other in self._bodies if other is not body and other.taken]
        free = self._most_bytes - sum(other.taken for other in others)
        is_small_or_alone = 2 * size <= free or not others
        if not is_small_or_alone and not self._make_room_by_cutting(body, size, free):
            return False
        body.taken = size
        return True

    def _make_room_by_cutting(self, body: RequestBody, size: int, free: int) -> bool:
        """Cut the youngest bodies of clients above their share until `body` fits. Cut none, and
        return False, if that is not enough or its own client would be above its share."""
        bytes_of = Counter[bytes]({body.client: size})
        for other in self._bodies:
            bytes_of[other.client] += 0 if other is body else other.taken
        share = self._most_bytes // max(2, len(bytes_of))
        if bytes_of[body.client] > share:
            return False
        victims = []
        for other in reversed(self._bodies):
            if size <= free:
                break
            if other.taken and other.can_be_cut and bytes_of[other.client] > share:
                victims.append(other)
                bytes_of[other.client] -= other.taken
                free += other.taken
        if size > free:
            return False
        for victim in victims:
            victim.cut()
        return True

    def _wake_those_with_room(self) -> None:
        for wait in self._waiting:
            if not wait.room.done() and self._try_to_reserve(wait.body, wait.size):
                wait.room.set_result(None)


BODY = "omlx.body"
"""The key of a request's ASGI scope for its BeginBody."""
BeginBody = Callable[[], AbstractContextManager[RequestBody]]
"""Begins a body of the request's client."""
