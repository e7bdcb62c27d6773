"""Who listens where the server of these settings would, and which port is free instead."""

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from omlx_server.cli.server_client.address import first_key, local_url
from omlx_server.cli.server_client.http import Asked, NoAnswer, asked
from omlx_server.errors import UsageError
from omlx_server.settings import Settings

_NEXT_PORTS = 50
_CONNECT_SECONDS = 1.0


class Listener(Enum):
    NOBODY = "nobody"
    OURS = "a server of this program"
    OTHER = "another program"


@dataclass(frozen=True, slots=True)
class Door:
    """An address to serve at. `url` is how this machine reaches it; a Unix socket has port 0."""

    host: str
    port: int
    url: str
    listener: Listener = Listener.NOBODY


def look(settings: Settings) -> Door:
    """The door of these settings. Any free port, if they want that."""
    host, port = settings.server.host, settings.server.port
    if settings.server.uds:
        return _socket(settings)
    if port == 0:
        return at_port(settings, _any_port(host))
    door = at_port(settings, port)
    if is_free(host, port):
        return door
    ours = is_ours(asked(door.url, first_key(settings)))
    return Door(host, port, door.url, Listener.OURS if ours else Listener.OTHER)


def _socket(settings: Settings) -> Door:
    """What is left of one whose server is gone is in nobody's way."""
    url = local_url(settings)
    ours = is_ours(asked(url, first_key(settings)))
    return Door("", 0, url, Listener.OURS if ours else Listener.NOBODY)


def next_free(settings: Settings) -> Door:
    """Raises UsageError when all ports near the configured one are taken."""
    host, first = settings.server.host, settings.server.port + 1
    for port in range(first, min(first + _NEXT_PORTS, 65536)):
        if is_free(host, port):
            return at_port(settings, port)
    raise UsageError(f"no port from {first} on is free", hint="omlx-server up --port 0")


def at_port(settings: Settings, port: int) -> Door:
    server = replace(settings.server, port=port)
    url = local_url(replace(settings, server=server))
    return Door(settings.server.host, port, url)


def is_free(host: str, port: int) -> bool:
    """Also false where a wildcard socket of somebody else listens, which macOS would let us hide.
    Whatever else is wrong with the address, the server itself says better."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            if probe.connect_ex((host, port)) == 0:
                return False
        except OSError:
            return True
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def is_ours(server: Asked) -> bool:
    """Whether it has our readiness; another key than ours doesn't matter for that."""
    try:
        said = server.get("/health/ready").json()
    except NoAnswer:
        return False
    return isinstance(said, Mapping) and "status" in said


def _any_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as probe:
        return int(probe.getsockname()[1])
