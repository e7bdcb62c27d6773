"""Which requests come from this machine, and which network stands for a client."""

import pytest
from starlette.types import Scope

from omlx_server.api.http.host import is_from_here, network_of


def scope(client: str = "127.0.0.1", **headers: str) -> Scope:
    given = {"host": "localhost:8000", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    return {"type": "http", "client": (client, 1), "server": ("127.0.0.1", 8000), "headers": raw}


def test_a_plain_request_over_loopback_is_from_here() -> None:
    assert is_from_here(scope())
    assert is_from_here(scope("::1"))
    assert not is_from_here(scope("192.0.2.1"))
    assert not is_from_here(scope(host="evil.example"))


@pytest.mark.parametrize("header", ["forwarded", "x_forwarded_for", "x_real_ip"])
def test_what_a_proxy_passes_on_is_not_from_here(header: str) -> None:
    assert not is_from_here(scope(**{header: "127.0.0.1"}))


def test_a_client_is_its_address_or_the_network_of_ipv6() -> None:
    assert network_of("192.0.2.1") == network_of("::ffff:192.0.2.1") != network_of("192.0.2.2")
    assert network_of("2001:db8::1") == network_of("2001:db8::2") != network_of("2001:db8:0:1::1")
    assert network_of("") == b""
