"""By which names a server is called: its own where keys are needed, and no stranger's."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from omlx_server.api.http.host import OwnNames, comparable_name, machine_names, reachable_names
from tests.api.harness import ServerProcess, assert_envelope, serving, wait_for

KEY = "key-of-a-client"
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def open_to_all(
    tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """As `serve --help` shows it: a wildcard and a key."""
    sets = [f"models.dirs={tiny_models}", "server.host=0.0.0.0", f"auth.api_keys={KEY}"]
    sets.append("memory.activation_reserve=64MB")
    with serving("org/tiny", tmp_path_factory.mktemp("open"), *sets) as server:
        yield server


def ask(server: ServerProcess, host: str, **headers: str) -> httpx.Response:
    names = {**HEADERS, "host": host, **headers}
    return server.http.get(f"{server.url}/v1/models", headers=names)


def own_addresses() -> list[str]:
    found = [a for one in psutil.net_if_addrs().values() for a in one]
    v4 = [a.address for a in found if a.family is socket.AF_INET]
    v6 = [f"[{a.address.partition('%')[0]}]" for a in found if a.family is socket.AF_INET6]
    return v4 + v6


def test_any_name_of_the_machine_is_allowed(open_to_all: ServerProcess) -> None:
    name = socket.gethostname()
    first = name.partition(".")[0]
    for host in (*own_addresses(), name, name.upper(), f"{first}.local", "localhost"):
        for port in ("", ":8000"):
            assert ask(open_to_all, host + port).status_code == 200, host
        assert ask(open_to_all, host, origin=f"http://{host}:3000").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "192.0.2.250", "[2001:db8::99]", "127.0.0.1.evil.example", "local", ""]
)
def test_a_strangers_name_is_refused_with_what_to_set(
    open_to_all: ServerProcess, host: str
) -> None:
    error = assert_envelope(ask(open_to_all, host), 403)
    assert "--set server.allowed_hosts=localhost,127.0.0.1,NAME" in error["message"]
    if host:
        refused = ask(open_to_all, "localhost", origin=f"http://{host}")
        assert "server.cors_origins" in assert_envelope(refused, 403)["message"]


def test_a_machine_reaches_it_by_its_address(open_to_all: ServerProcess) -> None:
    port = open_to_all.url.rpartition(":")[2]
    others = [a for a in own_addresses() if not a.startswith(("127.", "["))]
    if not others:
        pytest.skip("this machine has no network")
    found = httpx.get(f"http://{others[0]}:{port}/v1/models", headers=HEADERS, trust_env=False)
    assert found.status_code == 200
    assert httpx.get(f"http://{others[0]}:{port}/v1/models", trust_env=False).status_code == 401
    assert f"http://{others[0]}:{port}/v1" in open_to_all.log


def test_a_server_for_this_machine_alone_knows_no_other_name(tiny: ServerProcess) -> None:
    assert_envelope(tiny.http.get(f"{tiny.url}/v1/models", headers={"host": "192.0.2.2"}), 403)
    assert "other machines" not in tiny.log


# -- when it is looked up --------------------------------------------------------------------------


class Machine:
    """Names that change, looks that are counted, a clock that stands."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)
        self.looks = 0
        self.now = 0.0
        self.threads: set[int] = set()
        self.own = OwnNames(self._look, lambda: "box.domain", lambda: self.now)

    def _look(self) -> frozenset[str]:
        self.looks += 1
        self.threads.add(threading.get_ident())
        return self.names


def test_what_is_unknown_is_looked_up_rarely_and_elsewhere() -> None:
    async def scene() -> None:
        machine = Machine("a", "192.168.1.5")
        assert await machine.own.has("A") and await machine.own.has("192.168.1.5")
        assert machine.looks == 1
        found = await asyncio.gather(*(machine.own.has(f"evil{n}") for n in range(100)))
        assert not any(found) and machine.looks == 1
        machine.names = frozenset({"b"})
        machine.now = 4.9
        assert not await machine.own.has("b")
        machine.now = 5.0
        found = await asyncio.gather(*(machine.own.has("b") for _ in range(100)))
        assert all(found) and machine.looks == 2
        assert not await machine.own.has("a") and machine.looks == 2
        assert machine.threads.isdisjoint({threading.get_ident()})
        wait_for(lambda: machine.own._full_name)
        assert await machine.own.has("Box.Domain.") and not await machine.own.has("")

    asyncio.run(scene())


def test_nobody_waits_for_dns() -> None:
    async def scene() -> None:
        answers = threading.Event()

        def slow() -> str:
            answers.wait(60)
            return "box"

        own = OwnNames(lambda: frozenset({"a"}), slow)
        assert await own.has("a") and not await own.has("box")
        answers.set()
        wait_for(lambda: own._full_name)
        assert await own.has("box")

    asyncio.run(scene())


def test_addresses_have_one_spelling() -> None:
    assert comparable_name("FE80::1%en0") == comparable_name("fe80:0:0:0:0:0:0:1") == "fe80::1"
    assert comparable_name("Box.Local.") == "box.local"
    found = machine_names()
    assert {"127.0.0.1", socket.gethostname().lower()} <= found
    names = ["box", "box.local", "127.0.0.1", "::1", "fe80::1", "10.0.0.7", "fd00::2"]
    assert reachable_names(names, "::") == ["box.local", "10.0.0.7", "[fd00::2]"]
    assert reachable_names(names, "0.0.0.0") == ["box.local", "10.0.0.7"]
    assert reachable_names(names, "10.0.0.7") == []
