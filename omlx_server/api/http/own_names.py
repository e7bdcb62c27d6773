"""The names and addresses of this machine, as clients elsewhere may call it. asyncio thread.

They change while a server runs: a laptop comes to another network. So they are looked up again when
somebody asks for one that is not known, but rarely, and never on the event loop. DNS is asked for
the whole name of the machine only, and nobody waits for it. What it says of other names is never
asked: a stranger can make a name of his stand for any address.
"""

import asyncio
import ipaddress
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable

import psutil

_REST_SECONDS = 5.0
_EVERY_V4 = "0.0.0.0"
_WILDCARDS = (_EVERY_V4, "::")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def look_up() -> frozenset[str]:
    """Addresses of all interfaces, and the machine's own name, alone and as mDNS has it."""
    interfaces = psutil.net_if_addrs().values()
    addresses = {plain(a.address) for one in interfaces for a in one if a.family in _FAMILIES}
    name = socket.gethostname().lower()
    first = name.partition(".")[0]
    return frozenset({*addresses, name, first, f"{first}.local"} - {"", ".local"})


def whole_name() -> str:
    """The machine's name with its domain. May take as long as DNS does."""
    return socket.getfqdn().lower()


class OwnNames:
    """`look` gives the names that are found at once, `ask_dns` one more, sooner or later."""

    def __init__(
        self,
        look: Callable[[], frozenset[str]] = look_up,
        ask_dns: Callable[[], str] = whole_name,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._ask_dns = ask_dns
        self._clock = clock
        self._names: frozenset[str] = frozenset()
        self._whole_name = ""
        self._looked = -math.inf
        self._looking = asyncio.Lock()
        self._asking: threading.Thread | None = None

    async def has(self, name: str) -> bool:
        """Whether this machine is called so."""
        name = plain(name)
        if not self._knows(name):
            async with self._looking:
                if self._clock() - self._looked >= _REST_SECONDS:
                    await self._refresh()
        return self._knows(name)

    async def known(self) -> frozenset[str]:
        """All that are found at once, looked up now."""
        async with self._looking:
            await self._refresh()
        return self._names

    def _knows(self, name: str) -> bool:
        return bool(name) and (name in self._names or name == self._whole_name)

    async def _refresh(self) -> None:
        self._names = await asyncio.to_thread(self._look)
        self._looked = self._clock()
        if self._asking is None or not self._asking.is_alive():
            # No thread of a pool: the end of the process would wait for DNS.
            self._asking = threading.Thread(target=self._hear, name="own-name", daemon=True)
            self._asking.start()

    def _hear(self) -> None:
        self._whole_name = self._ask_dns()


def plain(name: str) -> str:
    """A name as it is compared: lower case, addresses in one spelling and without an interface."""
    name = name.lower().partition("%")[0].removesuffix(".")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def for_others(names: Iterable[str], host: str) -> list[str]:
    """Those by which a person on another machine would call a server that listens at `host`: the
    name by mDNS, then addresses. None where that is one address, which is known."""
    if host not in _WILDCARDS:
        return []
    found = sorted(name for name in names if name.endswith(".local"))
    for name in sorted(names):
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            continue
        if host == _EVERY_V4 and address.version == 6:
            continue
        if not (address.is_loopback or address.is_link_local):
            found.append(f"[{name}]" if address.version == 6 else name)
    return found
