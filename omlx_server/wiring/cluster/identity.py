"""Versions and addresses that a rank tells rank 0."""

import socket
from collections.abc import Sequence
from importlib.metadata import version

from omlx_server import __version__
from omlx_server.errors import UsageError


def versions() -> tuple[tuple[str, str], ...]:
    return (("omlx_server", __version__), ("mlx", version("mlx")), ("mlx-lm", version("mlx-lm")))


def difference(ours: tuple[tuple[str, str], ...], other: object) -> str:
    """Return the differing versions in words, or ""."""
    if not isinstance(other, tuple | list):
        return "its versions are unknown"
    theirs = dict(other)
    differing = [
        (name, local, theirs.get(name)) for name, local in ours if theirs.get(name) != local
    ]
    return ", ".join(f"{name} {remote} and not {local}" for name, local, remote in differing)


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
