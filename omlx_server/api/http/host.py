"""The Host header, what else names a host and a port, and who asks from this machine."""

import ipaddress

from starlette.datastructures import Headers
from starlette.types import Scope

_OWN_NAMES = ("localhost", "127.0.0.1", "::1")


def host_of(authority: str) -> str:
    """The name in `name:port`, `[v6]:port` or either without a port; lower case."""
    authority = authority.lower()
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def is_from_here(scope: Scope) -> bool:
    """By address, and by name too: a page in a browser here may be a stranger's."""
    if came_by_unix_socket(scope):
        return True
    client, name = scope.get("client"), host_of(Headers(scope=scope).get("host", ""))
    return client is not None and _is_loopback(client[0]) and name in _OWN_NAMES


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def came_by_unix_socket(scope: Scope) -> bool:
    """Whether the request came over a Unix socket, whose file only this user can open."""
    address = scope.get("server")
    return address is not None and address[1] is None and str(address[0]).startswith("/")
