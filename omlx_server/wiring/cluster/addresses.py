"""Addresses at which a rank's neighbours in the ring reach it."""

import socket
from collections.abc import Sequence

from omlx_server.errors import UsageError


def free_addresses(ips: Sequence[str]) -> tuple[str, ...]:
    """Return "IP:port" with a free port for each IPv4 address. Raises UsageError for one of another
    machine."""
    return tuple(f"{ip}:{_free_port(ip)}" for ip in ips)


def _free_port(ip: str) -> int:
    try:
        with socket.create_server((ip, 0)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"{ip} is no address of this machine: {why}") from error
