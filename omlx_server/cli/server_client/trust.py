"""Knows the addresses of this user's own servers: only they get what is stored here."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
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
    for number, address in enumerate(_addresses(parts.hostname or "", parts.port or 80)):
        if is_announced(address):  # the first one is tried first
            return f"{address}{parts.path}" if number else url
    return ""


def _addresses(host: str, port: int) -> Iterator[str]:
    with suppress(OSError, ValueError):  # no such host
        for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            yield http_url(str(address[0]), port)


@cache
def say_untrusted(url: str) -> None:
    say(
        f"note: no server of this user is known at {url}, so it gets no stored key or token; "
        "OMLX_API_KEY and OMLX_ADMIN_TOKEN are sent"
    )
