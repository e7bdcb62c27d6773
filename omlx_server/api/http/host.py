"""Host names in headers, and whether a request comes from this machine."""

from ipaddress import IPv6Address, ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

from omlx_server.api.http.own_names import is_loopback

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")


def host_of(authority: str) -> str:
    authority = authority.lower()
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def network_of(host: str) -> bytes:
    """Return a client's IPv4 address or 64 bits of IPv6; empty over a Unix socket."""
    try:
        address = ip_address(host)
    except ValueError:
        return b""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).packed[:8]


def is_from_here(scope: Scope) -> bool:
    """Return whether a request comes from this machine without a proxy. A loopback client must also
    name it as Host: a page may reach the server under another name (DNS rebinding)."""
    if came_by_unix_socket(scope):
        return True
    headers, client = Headers(scope=scope), scope.get("client")
    if any(name in headers for name in _FORWARDED):
        return False
    name = host_of(headers.get("host", ""))
    return client is not None and is_loopback(client[0]) and name in _OWN_NAMES


def came_by_unix_socket(scope: Scope) -> bool:
    address = scope.get("server")
    return address is not None and address[1] is None and str(address[0]).startswith("/")
