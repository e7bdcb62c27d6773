"""A rank that is gone at the moment in which MLX connects the ranks: no process hangs for it."""

import socket
import time
from pathlib import Path
from typing import Any

from omlx_server.compute.cluster.unblocking import Unblocking
from omlx_server.core.cluster.handshake import Formation, Hello, Ready, RollCall
from omlx_server.engine.cluster.link import FORMING_SECONDS, Link, LinkFailed, connect
from omlx_server.wiring.cluster.identity import free_addresses, versions
from tests.api.harness import wait_for
from tests.cluster.group import free_ports
from tests.cluster.servers import clustered, end

SECRET = "a secret of this test"


class HangingRank:
    """Rank 1 up to the moment in which MLX connects: it does not take part in that."""

    def __init__(self, port: int) -> None:
        self.link: Link = wait_for(lambda: _connected(port))
        self.link.send_now(Hello(1, versions(), "here"))
        self._ips = self.link.receive().ips
        self.hangs = False
        self.link.start(self._take)
        self._say_ready()

    def _say_ready(self) -> None:
        self.link.tell(Ready(free_addresses(self._ips)))

    def _take(self, message: Any) -> None:
        match message:
            case RollCall():
                self._say_ready()
            case Formation():
                self.link.patience = FORMING_SECONDS  # as a rank does: rank 0 gives no sign of life
                self.hangs = True


def _connected(port: int) -> Link | None:
    try:
        return connect(("127.0.0.1", port), SECRET.encode(), lambda why: None)
    except LinkFailed:
        return None


def test_a_server_outlives_a_rank_that_hangs_while_mlx_connects(
    tiny_models: Path, tmp_path: Path
) -> None:
    port = free_ports(1)[0]
    server = clustered(tiny_models, tmp_path, f"cluster.secret={SECRET}", f"cluster.port={port}")
    try:
        rank = HangingRank(port)
        wait_for(lambda: rank.hangs)
        wait_for(lambda: server.log.count("ranks are awaited at") == 2)
        assert "the ranks were not connected within 6 s" in server.log, server.log
        assert server.running and "Traceback" not in server.log
    finally:
        end(server)


def test_who_waits_for_both_neighbours_waits_no_longer() -> None:
    own, right = ([f"127.0.0.1:{port}" for port in ports] for ports in _pairs())
    with Unblocking(own, right, seconds=0.1) as unblocking:
        for address in own:  # as MLX does, which listens at the second one later
            with _listener(address) as listener:
                listener.accept()[0].close()
        wait_for(lambda: all(map(_reaches, right)))
    assert unblocking.was_late


def test_who_is_soon_done_notices_nothing() -> None:
    own, right = ([f"127.0.0.1:{port}" for port in ports] for ports in _pairs())
    began = time.monotonic()
    with Unblocking(own, right) as unblocking:
        pass
    assert not unblocking.was_late and time.monotonic() - began < 5


def _pairs() -> tuple[list[int], list[int]]:
    ports = free_ports(4)
    return ports[:2], ports[2:]


def _parted(address: str) -> tuple[str, int]:
    ip, _, port = address.rpartition(":")
    return ip, int(port)


def _listener(address: str) -> socket.socket:
    listener = socket.create_server(_parted(address))
    listener.settimeout(10)
    return listener


def _reaches(address: str) -> bool:
    try:
        socket.create_connection(_parted(address), timeout=1).close()
    except OSError:
        return False
    return True
