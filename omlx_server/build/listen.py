"""The socket that a server listens on."""

import socket

from omlx_server.errors import UsageError


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything slow happens.

    Raises:
        UsageError: somebody else has it, or the host is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        raise UsageError(
            f"can't listen on {host} port {port}: {error.strerror or error}",
            hint="another port: --port 8001; any free one: --port 0",
        ) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Where it can be reached."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
