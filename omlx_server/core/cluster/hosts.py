"""The machines of a cluster, as its hosts file says: JSON as `mlx.launch --hostfile` takes it, a
list of hosts, or an object that has it as "hosts" (`mlx.distributed_config` writes that).

    [{"ssh": "studio-1", "ips": ["10.0.0.1"]}, {"ssh": "studio-2", "ips": ["10.0.0.2"]}]

The first host is that of rank 0, where the server runs. Pure.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

_HERE = ("", "localhost", "127.0.0.1", "::1")
_FORM = 'each host is {"ssh": "NAME", "ips": ["ADDRESS"]}'


@dataclass(frozen=True, slots=True)
class Host:
    """The machine of one rank: the name by which `ssh` reaches it, and the IP addresses by which
    other ranks do."""

    ssh: str
    ips: Sequence[str]

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
        try:
            ip_address(ip)
        except ValueError as error:
            raise ValueError(f"host {number}: {ip!r} is no IP address") from error
    return Host(ssh, tuple(ips))
