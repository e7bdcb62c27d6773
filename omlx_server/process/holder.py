"""Who listens on a port, as far as this user may know."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

_ANY = ("0.0.0.0", "::")  # nobody else can have the port on any address then
_OURS = ("omlx_server", "omlx-server")


def holder_of(host: str, port: int) -> str:
    """Such as "nginx (process 42)"; empty where that can't be known. `host` is a number."""
    for pid, connection in _connections():
        if pid and _is_in_the_way(connection, host, port):
            with suppress(psutil.Error):
                return f"{_name(psutil.Process(pid))} (process {pid})"
    return ""


def _connections() -> Iterator[tuple[int | None, Any]]:
    """With their processes. macOS tells a user of their own only, and one process at a time."""
    try:
        yield from ((found.pid, found) for found in psutil.net_connections("tcp"))
    except psutil.AccessDenied:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                yield from ((process.pid, found) for found in process.net_connections("tcp"))


def _is_in_the_way(connection: Any, host: str, port: int) -> bool:
    if connection.status != psutil.CONN_LISTEN or connection.laddr.port != port:
        return False
    return host in _ANY or connection.laddr.ip in (host, *_ANY)


def _name(process: psutil.Process) -> str:
    """One of ours is called as its interpreter, which says little."""
    with suppress(psutil.Error):
        if any(Path(word).name in _OURS for word in process.cmdline()[:5]):
            return "another omlx-server"
    return "".join(letter if letter.isprintable() else "?" for letter in process.name())
