"""Only who knows the secret gets a link, and nobody keeps its threads and descriptors."""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client
from queue import SimpleQueue
from typing import Any

import pytest

from omlx_server.core.cluster.handshake import Alive, Hello
from omlx_server.engine.cluster.link import Link, LinkFailed, authenticated, connect
from tests.api.harness import PATIENCE
from tests.engine.cluster.descriptors import nothing_left

SECRET = b"the secret of this test"
SOON = 0.5
HELLO = Hello(1, [], "here")  # a list, as it comes from the wire
STRANGERS = {
    "one who closes at once": b"",
    "one who speaks HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a huge message": struct.pack("!i", 0x7FFFFFFF) + b"x" * 1000,
    "a huge message in the long form": struct.pack("!iQ", -1, 1 << 62) + b"x" * 1000,
    "a message of less than no bytes": struct.pack("!i", -7),
    "a wrong digest": struct.pack("!i", 16) + b"x" * 16,
    "half a message": struct.pack("!i", 16) + b"x",
}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def lost() -> "SimpleQueue[str]":
    return SimpleQueue()


def stranger(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    """The ends of a new connection: the stranger's and rank 0's."""
    theirs = socket.create_connection(listener.getsockname())
    return theirs, listener.accept()[0]


def pair(listener: socket.socket, lost: "SimpleQueue[str]") -> tuple[Link, Link]:
    """The links of rank 0 and of a rank, whose losses are put into the queue."""
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(connect, listener.getsockname(), SECRET, lost.put)
        first = authenticated(listener.accept()[0], SECRET, lost.put, challenges_first=True)
        return first, joining.result()


@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_refused_and_leaves_nothing(listener: socket.socket, data: bytes) -> None:
    with nothing_left():
        theirs, ours = stranger(listener)
        with theirs:
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(LinkFailed, match="does not know the secret"):
                authenticated(ours, SECRET, pytest.fail, challenges_first=True)


def test_no_more_is_read_of_a_stranger_than_an_answer_can_have(listener: socket.socket) -> None:
    """Else who announces 2 GB would have them allocated."""
    theirs, ours = stranger(listener)
    with theirs:
        theirs.sendall(STRANGERS["a huge message"])
        start = time.monotonic()
        with pytest.raises(LinkFailed, match="does not know the secret"):  # it waits for no more
            authenticated(ours, SECRET, pytest.fail, challenges_first=True)
        assert time.monotonic() - start < PATIENCE


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "dripping"])
def test_a_stranger_who_only_takes_time_is_refused_in_time(
    listener: socket.socket, *, drips: bool
) -> None:
    with nothing_left():
        theirs, ours = stranger(listener)
        is_over = threading.Event()

        def drip() -> None:
            while drips and not is_over.wait(SOON / 5):
                theirs.sendall(b"\0")

        dripping = threading.Thread(target=drip)
        dripping.start()
        theirs.sendall(struct.pack("!i", 200))
        with pytest.raises(LinkFailed, match="did not prove within"):
            authenticated(ours, SECRET, pytest.fail, challenges_first=True, seconds=SOON)
        is_over.set()
        dripping.join()
        theirs.close()


@pytest.mark.parametrize("said", [b"", struct.pack("!i", 99) + b"x"], ids=["nothing", "half"])
def test_who_knows_the_secret_must_speak_in_time_too(listener: socket.socket, said: bytes) -> None:
    """Here the secret is known to multiprocessing's own client, which is no link."""
    with nothing_left(), ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Client, listener.getsockname(), authkey=SECRET)
        first = authenticated(listener.accept()[0], SECRET, pytest.fail, challenges_first=True)
        with joining.result() as other:
            os.write(other.fileno(), said)
            with pytest.raises(LinkFailed, match="no word came"):
                first.receive(SOON)
        first.close()


def test_a_rank_does_not_wait_for_a_leader_that_says_nothing(listener: socket.socket) -> None:
    with nothing_left():
        theirs, ours = stranger(listener)
        with ours, pytest.raises(LinkFailed, match="did not prove within"):
            authenticated(theirs, SECRET, pytest.fail, challenges_first=False, seconds=SOON)


def test_links_that_end_leave_no_thread_and_no_descriptor(
    listener: socket.socket, lost: "SimpleQueue[str]"
) -> None:
    with nothing_left():
        first, other = pair(listener, lost)
        heard: SimpleQueue[Any] = SimpleQueue()
        for link in (first, other):
            link.start(heard.put, lambda: Alive(7))
        first.tell(HELLO)
        assert heard.get(timeout=PATIENCE) == HELLO
        first.close()
        assert lost.get(timeout=PATIENCE) == "the connection was closed"
    assert lost.empty(), "who closes a link loses nothing"


def test_who_gives_no_sign_of_life_is_lost_and_leaves_nothing(
    listener: socket.socket, lost: "SimpleQueue[str]"
) -> None:
    with nothing_left():
        first, other = pair(listener, lost)  # the other one is never started
        first.patience = SOON
        first.start(pytest.fail)
        assert lost.get(timeout=PATIENCE).startswith("no sign of life")
        other.close()
