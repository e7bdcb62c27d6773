"""Finds out who listens at the server's address, and which port is free instead."""

import socket
from dataclasses import dataclass
from enum import Enum

from omlx_server.cli.server_client.http import is_omlx_server, local_url, with_port
from omlx_server.errors import UsageError
from omlx_server.process import ports
from omlx_server.settings import Settings


class Listener(Enum):
    """The program that listens at an address."""

    NOBODY = "nobody"
    OURS = "a server of this program"
    OTHER = "another program"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address (port 0: a Unix socket), and who listens there now."""

    port: int
    url: str
    listener: Listener = Listener.NOBODY


def find_address(settings: Settings) -> ListenAddress:
    """Return the address of these settings. With server.port 0 it is a free port."""
    host, port = settings.server.host, settings.server.port
    if settings.server.uds:  # a dead server's socket file is no problem
        url = local_url(settings)
        return ListenAddress(0, url, Listener.OURS if is_omlx_server(url) else Listener.NOBODY)
    if port == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family) as probe:
            return _unused_address(settings, int(probe.getsockname()[1]))
    address = _unused_address(settings, port)
    if ports.is_free(host, port):
        return address
    listener = Listener.OURS if is_omlx_server(address.url) else Listener.OTHER
    return ListenAddress(port, address.url, listener)


def next_free(settings: Settings) -> ListenAddress:
    """Return the first free port above the configured one. Raises UsageError."""
    host, port = settings.server.host, settings.server.port
    free = ports.next_free(host, port)
    if free is None:
        raise UsageError(f"no port from {port + 1} on is free", hint="omlx-server up --port 0")
    return _unused_address(settings, free)


def _unused_address(settings: Settings, port: int) -> ListenAddress:
    return ListenAddress(port, local_url(with_port(settings, port)))
