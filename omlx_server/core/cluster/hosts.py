"""The hosts file of a cluster: JSON as `mlx.launch --hostfile` takes it. Pure.

    [{"ssh": "studio-1", "ips": ["10.0.0.1"]}, {"ssh": "studio-2", "ips": ["10.0.0.2"]}]

The first host is that of rank 0. For RDMA (JACCL) each host has the devices to the others by rank:

    {"ssh": "studio-1", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en2"]}

Source: MLX, "Getting Started with JACCL".
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

_HERE = ("", "localhost", "127.0.0.1", "::1")
_FORM = 'each host is {"ssh": "NAME", "ips": ["ADDRESS"]}'
_RDMA_FORM = '"rdma" has one entry for each host: null for itself, else "DEVICE" or ["DEVICE", …]'
# The RDMA devices from each rank to each rank; none to itself.
Devices = Sequence[Sequence[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Host:
    """The machine of one rank: its `ssh` name, and IPv4 addresses for other ranks."""

    ssh: str
    ips: Sequence[str]
    rdma: Sequence[Sequence[str]] = ()

    @property
    def is_here(self) -> bool:
        return self.ssh in _HERE


def parsed(text: str) -> list[Host]:
    """Parse a hosts file. Raises ValueError with a reason in one line."""
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    if isinstance(entries, dict):
        entries = entries.get("hosts")
    if not isinstance(entries, list) or len(entries) < 2:
        raise ValueError(f"it must be a list of two hosts or more: {_FORM}")
    return [_host(number, entry) for number, entry in enumerate(entries)]


def _host(number: int, entry: Any) -> Host:
    ssh = entry.get("ssh", "") if isinstance(entry, dict) else None
    ips = entry.get("ips") if isinstance(entry, dict) else None
    if not isinstance(ssh, str) or ssh.startswith("-"):
        raise ValueError(f"host {number} has no name for ssh: {_FORM}")
    if not isinstance(ips, list) or not ips:
        raise ValueError(f"host {number} has no addresses: {_FORM}")
    for ip in ips:
        try:
            IPv4Address(str(ip))  # a number alone would pass
        except ValueError as error:
            raise ValueError(f"host {number}: {ip!r} is no IPv4 address") from error
    return Host(ssh, tuple(ips), _devices(number, entry.get("rdma") or []))


def _devices(number: int, entries: Any) -> Sequence[Sequence[str]]:
    if not isinstance(entries, list):
        raise ValueError(f"host {number}: {_RDMA_FORM}")
    devices = list[tuple[str, ...]]()
    for entry in entries:
        names = [] if entry is None else entry
        if isinstance(names, str):
            names = [names]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"host {number}: {_RDMA_FORM}")
        devices.append(tuple(names))
    return tuple(devices)


def rdma_of(hosts: Sequence[Host]) -> Devices:
    """Return the RDMA devices between hosts. Raises ValueError unless they are a mesh or a ring."""
    size = len(hosts)
    for number, host in enumerate(hosts):
        if len(host.rdma) != size or host.rdma[number]:
            raise ValueError(f"host {number} has no RDMA devices: {_RDMA_FORM}")
    ring = [{(rank - 1) % size, (rank + 1) % size} for rank in range(size)]
    mesh = [set(range(size)) - {rank} for rank in range(size)]
    missing = _missing_link(hosts, mesh) and _missing_link(hosts, ring)
    if missing:
        raise ValueError(f"no RDMA device leads from host {missing[0]} to host {missing[1]}")
    return tuple(host.rdma for host in hosts)


def _missing_link(hosts: Sequence[Host], links: Sequence[set[int]]) -> tuple[int, int] | None:
    for rank, others in enumerate(links):
        for other in sorted(others):
            if not hosts[rank].rdma[other]:
                return rank, other
    return None
