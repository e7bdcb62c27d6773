"""The machines of a cluster, as its hosts file says: JSON as `mlx.launch --hostfile` takes it, a
list of hosts, or an object that has it as "hosts" (`mlx.distributed_config` writes that).

    [{"ssh": "studio-1", "ips": ["10.0.0.1"]}, {"ssh": "studio-2", "ips": ["10.0.0.2"]}]

The first host is that of rank 0, where the server runs. For RDMA over Thunderbolt (JACCL) each host
has the devices that lead to the others, by rank, with null for itself. Of several cables to one
host there is a list:

    {"ssh": "studio-1", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en2"]}

Pure. Source: MLX, "Getting Started with JACCL" and mlx/distributed/jaccl/lib/jaccl/jaccl.cpp.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

_HERE = ("", "localhost", "127.0.0.1", "::1")
_FORM = 'each host is {"ssh": "NAME", "ips": ["ADDRESS"]}'
_RDMA_FORM = '"rdma" has one entry for each host: null for itself, else "DEVICE" or ["DEVICE", …]'
# Of each rank, and to each rank, the RDMA devices; none to itself.
Devices = Sequence[Sequence[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Host:
    """The machine of one rank: the name by which `ssh` reaches it, and the IP addresses by which
    other ranks do. `rdma`: its devices to each rank, empty where the file has none."""

    ssh: str
    ips: Sequence[str]
    rdma: Sequence[Sequence[str]] = ()

    @property
    def is_here(self) -> bool:
        """Whether it is the machine of rank 0, as far as its name says."""
        return self.ssh in _HERE


def parsed(text: str) -> list[Host]:
    """The hosts in the text of a hosts file, by rank. Raises ValueError with a line that says what
    is wrong."""
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
        if not _is_address(ip):
            raise ValueError(f"host {number}: {ip!r} is no IP address")
    return Host(ssh, tuple(ips), _devices(number, entry.get("rdma") or []))


def _is_address(ip: Any) -> bool:
    try:
        return isinstance(ip, str) and bool(ip_address(ip))  # which takes numbers, too
    except ValueError:
        return False


def _devices(number: int, entries: Any) -> Sequence[Sequence[str]]:
    if not isinstance(entries, list):
        raise ValueError(f"host {number}: {_RDMA_FORM}")
    found = [
        [] if entry is None else [entry] if isinstance(entry, str) else entry for entry in entries
    ]
    for names in found:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"host {number}: {_RDMA_FORM}")
    return tuple(map(tuple, found))


def rdma_of(hosts: Sequence[Host]) -> Devices:
    """The RDMA devices between the hosts, which must be a mesh (each is connected with each other)
    or a ring (each with the one before and the one after it). Raises ValueError where they are
    none, or rank 0 has no IPv4 address first, at which JACCL's ranks meet."""
    size = len(hosts)
    for number, host in enumerate(hosts):
        if len(host.rdma) != size or host.rdma[number]:
            raise ValueError(f"host {number} has no RDMA devices: {_RDMA_FORM}")
    ring = [{(rank - 1) % size, (rank + 1) % size} for rank in range(size)]
    mesh = [set(range(size)) - {rank} for rank in range(size)]
    if _missing(hosts, mesh) and (missing := _missing(hosts, ring)):
        raise ValueError(f"no RDMA device leads from host {missing[0]} to host {missing[1]}")
    if ip_address(hosts[0].ips[0]).version != 4:
        raise ValueError("host 0 needs an IPv4 address first, at which JACCL's ranks meet")
    return tuple(host.rdma for host in hosts)


def _missing(hosts: Sequence[Host], wanted: Sequence[set[int]]) -> tuple[int, int] | None:
    """The first two ranks without a device from one to the other, of those that are wanted."""
    pairs = ((rank, other) for rank, others in enumerate(wanted) for other in sorted(others))
    return next((pair for pair in pairs if not hosts[pair[0]].rdma[pair[1]]), None)
