"""Finds out which TCP ports are free. Blocking."""

import errno
import socket

_NEXT_PORTS = 50
_PORTS = 65536
_CONNECT_SECONDS = 1.0


def is_free(host: str, port: int) -> bool:
    """Whether no program listens at `host` and `port`. The port is connected to first: macOS would
    let us bind it although another program listens on a wildcard address. An address that can't be
    used for another reason counts as free: the server itself reports that."""
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
    """The first free port above `port`; None if none of the next 50 is free."""
    following = range(port + 1, min(port + 1 + _NEXT_PORTS, _PORTS))
    return next((one for one in following if is_free(host, one)), None)
