"""Finds free TCP ports. Blocking."""

import errno
import socket

_NEXT_PORTS = 50
_PORTS = 65536
_CONNECT_SECONDS = 1.0


def is_free(host: str, port: int) -> bool:
    """Return whether nobody listens there. It connects first: macOS lets us bind a port in use on a
    wildcard address. An unusable address counts as free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.settimeout(_CONNECT_SECONDS)
            if probe.connect_ex((host, port)) == 0:
                return False
    except OSError:  # such as that the machine has no IPv6
        return True
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def next_free(host: str, port: int) -> int | None:
    """Return the first free port of the next 50, or None."""
    following = range(port + 1, min(port + 1 + _NEXT_PORTS, _PORTS))
    return next((candidate for candidate in following if is_free(host, candidate)), None)
