"""Rank 0 of two, to which anything may connect."""

from typing import Any

from omlx_server.core.cluster.handshake import Hello, Welcome
from omlx_server.core.cluster.hosts import Host
from omlx_server.core.cluster.state import RankStatus
from omlx_server.engine.cluster.link import Link, connect
from omlx_server.process.ports import next_free
from omlx_server.wiring.cluster.gathering import Gathering
from omlx_server.wiring.cluster.identity import versions
from omlx_server.wiring.cluster.options import GatheringOptions

SECRET = b"the secret of this test"
HERE = Host("", ("127.0.0.1",))
WELCOME = Welcome(2, (), ("org/tiny",), "fingerprint", ("none", 0.0, 0), 16, has_cold=False)
ADDRESSES = ("127.0.0.1:1",)


class Port:
    """A gathering of two ranks, the second of which is to come by itself, and its port."""

    def __init__(self) -> None:
        port = next_free("127.0.0.1", 21_000)
        assert port is not None
        self.address = ("127.0.0.1", port)
        self.lost = list[str]()
        self.gathering = Gathering(GatheringOptions((HERE, HERE), port, SECRET))
        self.gathering.on_lost = self.lost.append
        self.gathering.begin(WELCOME)

    def status(self) -> RankStatus:
        return self.gathering.states[0].status

    def says_hello(self, hello: Hello) -> tuple[Link, Any]:
        """A link whose other end has been told this, and what it answers."""
        link = connect(self.address, SECRET, lambda why: None)
        link.send_now(hello)
        return link, link.receive()


def hello(rank: int = 1, **changes: str) -> Hello:
    found = {**dict(versions()), **changes}
    return Hello(rank, tuple(found.items()), "a machine")
