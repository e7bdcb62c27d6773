"""More connections than descriptors: whose goes, and who is served meanwhile."""

import asyncio
import logging

import pytest

from omlx_server.api.connections.connections import Connections
from tests.api.http.place import Place, Streams, play, status, until

DESCRIPTORS = 40  # 30 for connections, 15 of them for one address
SLOW = b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"


class Client:
    """A connection of an address that the test chooses."""

    unread = 0

    def __init__(self, address: str) -> None:
        self.address = address.encode()
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


def opened(all_of_them: Connections, address: str, count: int) -> list[Client]:
    found = [Client(address) for _ in range(count)]
    for one in found:
        if not all_of_them.open(one):
            one.dropped = True
            all_of_them.close(one)
    return found


def alive(clients: list[Client]) -> list[Client]:
    return [one for one in clients if not one.dropped]


async def is_closed(streams: Streams) -> bool:
    try:
        return not await streams[0].read(1)
    except ConnectionError:
        return True


# -- which one goes --------------------------------------------------------------------------------


def test_the_oldest_idle_one_of_its_own_address_goes() -> None:
    connections = Connections(DESCRIPTORS)
    other = opened(connections, "them", 3)
    mine = opened(connections, "mine", 30)
    assert alive(other) == other
    assert alive(mine) == mine[-len(alive(mine)) :]
    assert 10 < len(alive(mine)) <= 15
    assert connections.ended["idle"] == 30 - len(alive(mine))


def test_one_that_was_used_is_not_the_oldest() -> None:
    connections = Connections(DESCRIPTORS)
    first, *_ = opened(connections, "mine", 15)
    assert connections.begin_request(first, "/v1/models")
    connections.mark_idle(first)
    opened(connections, "mine", 5)
    assert not first.dropped


def test_one_with_a_request_is_never_closed_for_others() -> None:
    connections = Connections(DESCRIPTORS)
    busy = opened(connections, "mine", 10)
    assert all(connections.begin_request(one, "/v1/models") for one in busy)
    opened(connections, "mine", 50)
    assert alive(busy) == busy


def test_too_many_requests_of_one_address_leave_room_for_health() -> None:
    connections = Connections(DESCRIPTORS)
    busy = opened(connections, "mine", 14)
    assert all(connections.begin_request(one, "/v1/models") for one in busy)
    (late,) = opened(connections, "mine", 1)
    assert not connections.begin_request(late, "/v1/models")
    assert connections.begin_request(late, "/health") and connections.begin_request(
        late, "/admin/live"
    )
    (stranger,) = opened(connections, "them", 1)
    assert connections.begin_request(stranger, "/v1/models")


def test_greedy_addresses_never_have_all() -> None:
    """Each takes what it can get, idle or busy; a newcomer is let in, and there are never more than
    there may be."""
    for busy in (False, True):
        connections = Connections(DESCRIPTORS)
        for number in range(8):
            for one in alive(opened(connections, f"greedy-{number}", 40)):
                if busy:
                    connections.begin_request(one, "/v1/models")
            assert len(connections) <= 30
        (late,) = opened(connections, "late", 1)
        assert not late.dropped or busy
        assert len(connections) <= 30


def test_closed_ones_are_forgotten() -> None:
    connections = Connections(DESCRIPTORS)
    for one in opened(connections, "mine", 100):
        connections.close(one)
    assert len(connections) == 0 and connections.unread == 0


# -- real ones -------------------------------------------------------------------------------------


def test_idle_ones_that_come_again_and_again_shut_nobody_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def reopen(place: Place, done: asyncio.Event) -> None:
        while not done.is_set():
            await is_closed(await place.connect())

    async def scene(place: Place) -> None:
        caplog.clear()
        done = asyncio.Event()
        again = [asyncio.create_task(reopen(place, done)) for _ in range(60)]
        await until(lambda: place.limit.ended["idle"] > 100)
        for _ in range(20):
            await place.serves()
            assert len(place.limit) <= 16
        done.set()
        place.drop_all()
        await asyncio.gather(*again)
        lines = [r for r in caplog.records if "more connections" in r.message]
        assert len(lines) == 1 and "127.0.0.1" in lines[0].message

    with caplog.at_level(logging.WARNING, "omlx_server.api.connections.connections"):
        play(scene, DESCRIPTORS)


def test_requests_beyond_the_share_are_refused_at_once() -> None:
    async def scene(place: Place) -> None:
        slow = [await place.connect() for _ in range(14)]
        for _, writer in slow:
            writer.write(SLOW)
        await until(lambda: place.server.under_way == 14)
        answer = await place.ask(b"GET /quick HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert status(answer) == 503 and b"too_many_connections" in answer
        assert b"\r\nretry-after: 5\r\n" in answer
        health = await place.ask(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert status(health) == 200
        for reader, _ in slow:
            assert status(await reader.readuntil(b"slept")) == 200
        await place.serves()

    play(scene, DESCRIPTORS)
