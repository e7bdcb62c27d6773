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

from omlx_server.errors import OmlxError, RequestTimeout, Unavailable

SMALL = 64 * 2**10
_LEAST_RATE = 64_000  # bytes a second
_MOST_WAITING = 32  # bodies of one client
_MOST_BYTES = 256 * 2**20


def bound_for(memory_limit: int) -> int:
    """Return the most bytes of all bodies for a memory limit in bytes."""
    return min(_MOST_BYTES, memory_limit // 16)


class TooManyBodies(Unavailable):
    code = "too_many_bodies"


class RequestBody:
    """One body that is read or parsed: `held` bytes have come, `taken` are reserved."""

    def __init__(self, bodies: "Bodies", client: bytes) -> None:
        self.client = client
        self.held = self.taken = 0
        self._bodies = bodies
        self._received = 0
        self._deadline: asyncio.Timeout | None = None
        self._begun = 0.0
        self._cut = False

    @property
    def can_be_cut(self) -> bool:
        return self._deadline is not None and not self._deadline.expired() and not self._cut

    @asynccontextmanager
    async def coming(self) -> AsyncIterator[None]:
        """Receive the body within this. Raises RequestTimeout if it is too slow, TooManyBodies if
        it is cut."""
        self._begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._bodies.seconds) as self._deadline:
                yield
        except TimeoutError:
            raise self._bodies.refusal("cut" if self._cut else "slow") from None
        finally:
            self._deadline = None

    async def add(self, count: int, whole: int) -> None:
        """Count `count` new bytes of `whole`, and wait for room. Raises TooManyBodies if there is
        none in time."""
        self.held += count
        self._received += count
        if self.held > SMALL:
            await self.make_room(max(whole, self.held))
        if self._deadline is not None and not self._cut:
            more = self._bodies.seconds + self._received / _LEAST_RATE
            self._deadline.reschedule(self._begun + more)

    async def make_room(self, size: int) -> None:
        """Wait until there is room for `size` bytes in all. Raises as `add`."""
        if self.taken >= size or self._cut:
            return
        deadline, loop = self._deadline, asyncio.get_running_loop()
        began = loop.time()
        if deadline is not None:
            deadline.reschedule(None)
        await self._bodies.take(self, size)
        self._begun += loop.time() - began

    def become(self, size: int) -> None:
        self.held = size
        self.taken = size if size > SMALL else 0

    def cut(self) -> None:
        """Refuse the rest of the body: its reader gets TooManyBodies."""
        self._cut, self.taken = True, 0
        if self._deadline is not None:
            self._deadline.reschedule(0)


class Bodies:
    """All bodies that are received now. `refused` counts by reason: `slow`, `full`, `cut`."""

    def __init__(self, most: int = _MOST_BYTES, seconds: float = 10.0) -> None:
        """`most` bounds the bytes of all, but one body alone may be larger. `seconds` are added to
        the time by the least rate, and bound the wait for room."""
        self.seconds = seconds
        self.refused = Counter({"slow": 0, "full": 0, "cut": 0})
        self._most = most
        self._bodies: list[RequestBody] = []  # the oldest first
        self._waiting: list[tuple[RequestBody, int, asyncio.Future[None]]] = []

    @property
    def held(self) -> int:
        return sum(body.held for body in self._bodies)

    @contextmanager
    def of(self, client: bytes) -> Iterator[RequestBody]:
        body = RequestBody(self, client)
        self._bodies.append(body)
        try:
            yield body
        finally:
            self._bodies.remove(body)
            self._wake()

    async def take(self, body: RequestBody, size: int) -> None:
        if self._gives(body, size):
            return
        if sum(one.client == body.client for one, *_ in self._waiting) >= _MOST_WAITING:
            raise self.refusal("full")
        waits = body, size, asyncio.get_running_loop().create_future()
        self._waiting.append(waits)
        try:
            async with asyncio.timeout(self.seconds):
                await waits[2]
        except TimeoutError:
            raise self.refusal("full") from None
        finally:
            self._waiting.remove(waits)

    def refusal(self, reason: str) -> OmlxError:
        self.refused[reason] += 1
        if reason == "slow":
            return RequestTimeout("the body came too slowly")
        return TooManyBodies(
            "too many large bodies are on their way", retry_after=max(1, round(self.seconds))
        )

    def _gives(self, body: RequestBody, size: int) -> bool:
        """Reserve `size` bytes for `body` if there is room; return whether there is."""
        others = [one for one in self._bodies if one is not body and one.taken]
        free = self._most - sum(one.taken for one in others)
        if 2 * size > free and others and not self._cuts(body, size, free):
            return False
        body.taken = size
        return True

    def _cuts(self, body: RequestBody, size: int, free: int) -> bool:
        """Return whether `body` fits into its client's share, after bodies above theirs are cut."""
        by_client = Counter[bytes]({body.client: size})
        for one in self._bodies:
            by_client[one.client] += 0 if one is body else one.taken
        share = self._most // max(2, len(by_client))
        if by_client[body.client] > share:
            return False
        victims = []
        for one in reversed(self._bodies):
            if size <= free:
                break
            if one.taken and one.can_be_cut and by_client[one.client] > share:
                victims.append(one)
                by_client[one.client] -= one.taken
                free += one.taken
        if size > free:
            return False
        for one in victims:
            one.cut()
        return True

    def _wake(self) -> None:
        for body, size, future in self._waiting:
            if not future.done() and self._gives(body, size):
                future.set_result(None)


BODY = "omlx.body"
"""The key of a request's ASGI scope for its BeginBody."""
BeginBody = Callable[[], AbstractContextManager[RequestBody]]
"""Begins a body of the request's client."""
