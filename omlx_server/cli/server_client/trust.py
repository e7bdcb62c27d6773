"""Knows the addresses of this user's own servers: only they get what is stored here."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from omlx_server.cli.shell.output import say
from omlx_server.process.running import http_url, is_announced
from omlx_server.settings.types import UNIX


def trusted_url(url: str) -> str:
    """Return a URL for the server of this user that listens at `url`; "" if none does."""
    if url.startswith(UNIX):
        path = f"{UNIX}{Path(url.removeprefix(UNIX)).absolute()}"
        return path if is_announced(path) else ""
    parts = urlsplit(url)
    if parts.scheme != "http":
        return ""
    port = parts.port or 80
    for number, ip in enumerate(_addresses(parts.hostname or "", port)):
        address = http_url(ip, port)
        if is_announced(address) or _is_unannounced(ip, port):  # the first one is tried first
            return f"{address}{parts.path}" if number else url
    return ""


def _is_unannounced(ip: str, port: int) -> bool:
    """Whether a server of this user listens that touches no disk (cache.hot_cache_only)."""
    from omlx_server.process.listen import is_own_server

    return ip_address(ip).is_loopback and is_own_server(ip, port)


def _addresses(host: str, port: int) -> Iterator[str]:
    with suppress(OSError, ValueError):  # no such host
        for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            yield str(address[0])


@cache
def say_untrusted(url: str) -> None:
    say(
        f"note: no server of this user is known at {url}, so it gets no stored key or token; "
        "OMLX_API_KEY and OMLX_ADMIN_TOKEN are sent"
    )
