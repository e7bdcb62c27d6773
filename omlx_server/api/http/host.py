"""Host names in headers, the names of this machine, and whether a request comes from it.

A name in a request that is not known yet causes a new look-up. DNS is asked for this machine's own
name only, never for a name in a request, since its owner decides where it points. asyncio thread.
"""

import asyncio
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

import psutil
from starlette.datastructures import Headers
from starlette.types import Scope

_log = logging.getLogger(__name__)
_REST_SECONDS = 5.0
_EVERY_V4 = "0.0.0.0"
_WILDCARDS = (_EVERY_V4, "::")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
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


def names_here() -> frozenset[str]:
    """Return the addresses of all interfaces, and the machine's name: whole, without domain, and
    with `.local` (mDNS)."""
    try:
        interfaces = list(psutil.net_if_addrs().values())
    except OSError as error:  # a sandbox without netlink sockets
        _log.warning("the addresses of this machine can't be read: %s", error.strerror or error)
        interfaces = []
    addresses = {plain(a.address) for one in interfaces for a in one if a.family in _FAMILIES}
    name = socket.gethostname().lower()
    first = name.partition(".")[0]
    return frozenset({*addresses, name, first, f"{first}.local"} - {"", ".local"})


@dataclass(slots=True, eq=False)
class OwnNames:
    """The names of this machine. `find` returns those without DNS, `ask_dns` the full name,
    slowly."""

    find: Callable[[], frozenset[str]] = names_here
    ask_dns: Callable[[], str] = socket.getfqdn
    clock: Callable[[], float] = time.monotonic
    _names: frozenset[str] = frozenset()
    _whole_name: str = ""
    _found_at: float = -math.inf
    _finding: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asking: threading.Thread | None = None

    async def has(self, name: str) -> bool:
        """Return whether `name` is this machine's, after a new look-up if need be."""
        name = plain(name)
        if not self._knows(name):
            async with self._finding:
                if self.clock() - self._found_at >= _REST_SECONDS:
                    await self._refresh()
        return self._knows(name)

    async def known(self) -> frozenset[str]:
        async with self._finding:
            await self._refresh()
        return self._names

    def _knows(self, name: str) -> bool:
        return bool(name) and (name in self._names or name == self._whole_name)

    async def _refresh(self) -> None:
        self._names = await asyncio.to_thread(self.find)
        self._found_at = self.clock()
        if self._asking is None or not self._asking.is_alive():
            # A daemon thread: the process does not wait for DNS when it ends.
            self._asking = threading.Thread(target=self._hear, name="own-name", daemon=True)
            self._asking.start()

    def _hear(self) -> None:
        self._whole_name = self.ask_dns().lower()


def plain(name: str) -> str:
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


def for_others(names: Iterable[str], host: str) -> list[str]:
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
