"""sd_notify over real datagram sockets: the few lines by themselves, and a whole server's life."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from omlx_server.service.notify import Notifier, keep_alive
from tests.api.harness import wait_for
from tests.service.made import save_small

TOKENS = 1000


class Manager:
    """What a service manager has: the other end of the socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(60)

    def hear(self) -> list[str]:
        return self._socket.recv(65536).decode().split("\n")

    def hear_until(self, word: str) -> list[list[str]]:
        """Everything up to the first message with this word."""
        heard = [self.hear()]
        while word not in heard[-1]:
            heard.append(self.hear())
        return heard

    def heard_nothing(self) -> bool:
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(65536)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(60)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def manager(address: str) -> Iterator[Manager]:
    listening = Manager(address)
    try:
        yield listening
    finally:
        listening.close()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.mark.parametrize("abstract", [False, True])
def test_what_is_said_arrives(abstract: bool, address: str) -> None:
    place = f"@omlx-test-{os.getpid()}" if abstract else address
    with manager(place) as listening:
        notifier = Notifier({"NOTIFY_SOCKET": place})
        notifier.ready("serves é\nWATCHDOG=trigger")
        notifier.alive()
        notifier.stopping()
        notifier.starting_over()
        assert listening.hear() == ["READY=1", "STATUS=serves é WATCHDOG=trigger"]
        assert listening.hear() == ["WATCHDOG=1"]
        assert listening.hear()[0] == "STOPPING=1"
        assert listening.hear()[0] == "WATCHDOG_USEC=0"


def test_ready_arms_the_watchdog_again(address: str) -> None:
    with manager(address) as listening:
        Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "5000000"}).ready("x")
        assert listening.hear() == ["READY=1", "STATUS=x", "WATCHDOG_USEC=5000000"]


def test_a_manager_that_does_not_read_holds_nobody_up(address: str) -> None:
    """It would hold up the event loop, and all answers with it."""
    with manager(address) as listening:
        notifier = Notifier({"NOTIFY_SOCKET": address})
        began = time.monotonic()
        for _ in range(1000):
            notifier.alive()
        notifier.ready("x")
        notifier.stopping()
        assert time.monotonic() - began < 30, "one that waits would do so for ever"
        assert listening.hear() == ["WATCHDOG=1"]


def test_what_a_manager_must_hear_waits_until_it_reads(address: str) -> None:
    """A unit whose READY=1 is lost would be starting for ever."""
    with manager(address) as listening:
        notifier = Notifier({"NOTIFY_SOCKET": address})
        for _ in range(100):
            notifier.alive()
        notifier.ready("x")
        notifier.stopping()
        time.sleep(0.05)
        heard = listening.hear_until("READY=1")
        assert {*map(tuple, heard[:-1])} == {("WATCHDOG=1",)}
        assert listening.hear()[0] == "STOPPING=1"
        notifier.ready("y")
        assert listening.hear() == ["READY=1", "STATUS=y"]


def test_without_a_manager_nothing_happens(tmp_path: Path) -> None:
    Notifier({}).ready("x")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("x")
    assert Notifier({"WATCHDOG_USEC": "1000000"}).ping_seconds == 0


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, 0),
        ({"WATCHDOG_USEC": "soon"}, 0),
        ({}, 0),
    ],
)
def test_the_watchdog_is_told_twice_as_often_as_it_must(
    environ: dict[str, str], seconds: float
) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/x", **environ}).ping_seconds == seconds


def test_pings_end_while_the_engine_is_stuck(address: str) -> None:
    with manager(address) as listening:

        async def scene() -> None:
            answers = iter([True, False, False])
            notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000"})
            with pytest.raises(RuntimeError):  # the answers are used up
                async with asyncio.timeout(60):
                    await keep_alive(notifier, lambda: next(answers))

        asyncio.run(scene())
        assert listening.hear() == ["WATCHDOG=1"]
        assert listening.heard_nothing()


def test_a_life_of_a_server(tmp_path: Path, address: str) -> None:
    """READY when the model is there, WATCHDOG while it turns; after SIGTERM STOPPING at once, the
    running answer to its end, and exit code 0."""
    name, models = "org/tiny", tmp_path / "models"
    save_small(models / name)
    sets = [f"models.dirs={models}", "server.shutdown_grace_seconds=300"]
    with manager(address) as listening, _served(name, sets, tmp_path, address) as process:
        first = listening.hear_until("READY=1")
        assert all(message == ["WATCHDOG=1"] for message in first[:-1])
        status = next(word for word in first[-1] if word.startswith("STATUS="))
        assert status.startswith(f"STATUS=serves {name} at http://127.0.0.1:")
        url = status.rpartition(" ")[2]
        assert httpx.get(f"{url}/health/ready").status_code == 200
        for _ in range(3):
            assert listening.hear() == ["WATCHDOG=1"]

        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(_ask(url, name)))
        asking.start()
        wait_for(lambda: httpx.get(f"{url}/health").json()["engines"][0]["running"] or answers)
        process.send_signal(signal.SIGTERM)
        assert listening.hear_until("STOPPING=1")
        asking.join(60)
        assert answers[0].json()["usage"]["completion_tokens"] == TOKENS
        assert process.wait(60) == 0


def _ask(url: str, name: str) -> httpx.Response:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


@contextmanager
def _served(
    name: str, sets: list[str], directory: Path, address: str
) -> Iterator[subprocess.Popen[bytes]]:
    (directory / "c.toml").touch()
    cold = f"cache.cold_dir={directory / 'kv'}"
    words = [word for setting in (*sets, cold) for word in ("--set", setting)]
    command = [sys.executable, "-m", "omlx_server", "serve", name, "--port", "0", *words]
    own = {key: value for key, value in os.environ.items() if not key.startswith("OMLX_")}
    own |= {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"}
    own["PYTHONPATH"] = str(Path(__file__).parents[2])
    with (directory / "out").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--config", str(directory / "c.toml")], env=own, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
