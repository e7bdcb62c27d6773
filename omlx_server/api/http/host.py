"""Host names in headers, the names of this machine, and whether a request comes from it.

A name in a request that is not known yet causes a new look-up. DNS is asked for this machine's own
name only, never for a name in a request, since its owner decides where it points. asyncio thread.
"""

import asyncio
import logging
import math
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

import psutil
from starlette.datastructures import Headers
from starlette.types import Scope

from omlx_server import clock

_log = logging.getLogger(__name__)
_LOOK_UP_PAUSE_SECONDS = 5.0
_EVERY_V4 = "0.0.0.0"
_WILDCARDS = (_EVERY_V4, "::")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip")
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def host_of(authority: str) -> str:
    """Return the host of HOST:PORT or [HOST]:PORT, in lower case."""
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
    if any(name in headers for name in _PROXY_HEADERS):
        return False
    name = host_of(headers.get("host", ""))
    return client is not None and is_loopback(client[0]) and name in _LOOPBACK_NAMES


def came_by_unix_socket(scope: Scope) -> bool:
    address = scope.get("server")
    return address is not None and address[1] is None and str(address[0]).startswith("/")


def machine_names() -> frozenset[str]:
    """Return all addresses, and the name: whole, without domain, and with `.local` (mDNS)."""
    try:
        interfaces = psutil.net_if_addrs()
    except OSError as error:  # a sandbox without netlink sockets
        _log.warning("the addresses of this machine can't be read: %s", error.strerror or error)
        interfaces = {}
    found = [entry for entries in interfaces.values() for entry in entries]
    addresses = {comparable_name(e.address) for e in found if e.family in _FAMILIES}
    name = socket.gethostname().lower()
    short_name = name.partition(".")[0]
    return frozenset({*addresses, name, short_name, f"{short_name}.local"} - {"", ".local"})


@dataclass(slots=True, eq=False)
class OwnNames:
    """The names of this machine. `find` returns those without DNS, `ask_dns` the full one."""

    find: Callable[[], frozenset[str]] = machine_names
    ask_dns: Callable[[], str] = socket.getfqdn
    clock: Callable[[], float] = clock.now
    _names: frozenset[str] = frozenset()
    _full_name: str = ""
    _looked_up_at: float = -math.inf
    _look_up_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _dns_thread: threading.Thread | None = None

    async def has(self, name: str) -> bool:
        """Return whether `name` is this machine's, after a new look-up if need be."""
        name = comparable_name(name)
        if not self._knows(name):
            async with self._look_up_lock:
                if self.clock() - self._looked_up_at >= _LOOK_UP_PAUSE_SECONDS:
                    await self._refresh()
        return self._knows(name)

    async def look_up(self) -> frozenset[str]:
        """Return the names without DNS, looked up anew."""
        async with self._look_up_lock:
            await self._refresh()
        return self._names

    def _knows(self, name: str) -> bool:
        return bool(name) and (name in self._names or name == self._full_name)

    async def _refresh(self) -> None:
        self._names = await asyncio.to_thread(self.find)
        self._looked_up_at = self.clock()
        if self._dns_thread is None or not self._dns_thread.is_alive():
            # A daemon thread: the process does not wait for DNS when it ends.
            self._dns_thread = threading.Thread(
                target=self._ask_full_name, name="own-name", daemon=True
            )
            self._dns_thread.start()

    def _ask_full_name(self) -> None:
        self._full_name = self.ask_dns().lower()


def comparable_name(name: str) -> str:
    """Return a name in comparable form: lower case, no final dot, one spelling for each address."""
    name = name.lower().partition("%")[0].removesuffix(".")
    try:
        return str(ip_address(name))
    except ValueError:
        return name


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def reachable_names(names: Iterable[str], host: str) -> list[str]:
    """Return those of `names` that reach a server on a wildcard `host`, mDNS names first."""
    if host not in _WILDCARDS:
        return []
    hosts = sorted(name for name in names if name.endswith(".local"))
    for name in sorted(names):
        try:
            address = ip_address(name)
        except ValueError:
            continue
        if host == _EVERY_V4 and address.version == 6:
            continue
        if not (address.is_loopback or address.is_link_local):
            hosts.append(f"[{name}]" if address.version == 6 else name)
    return hosts
