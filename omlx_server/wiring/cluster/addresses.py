"""Where a rank can be reached by its neighbours in the ring."""

import socket
from collections.abc import Sequence

from omlx_server.errors import UsageError


def free_addresses(ips: Sequence[str]) -> tuple[str, ...]:
    """An "IP:port" with a free port for each of these IPv4 addresses of this machine. Raises
    UsageError for one that is none of its."""
    return tuple(f"{ip}:{_free_port(ip)}" for ip in ips)


def _free_port(ip: str) -> int:
    try:
        with socket.create_server((ip, 0)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"{ip} is no address of this machine: {why}") from error
