"""A server on a Unix socket, as a client of the standard library. Its address is `unix:PATH`, which
is written where a URL would be."""

import socket
from http.client import HTTPConnection

from omlx_server.settings.types import UNIX


def socket_of(url: str) -> str:
    """The path of the socket that an address names; empty for a URL."""
    return url.removeprefix(UNIX) if url.startswith(UNIX) else ""


class UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
