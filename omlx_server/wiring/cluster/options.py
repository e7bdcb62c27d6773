"""Options for the ranks of a cluster, from rank 0's settings. Without MLX, for quick commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx_server.core.cluster.hosts import Devices, Host, parsed, rdma_of
from omlx_server.errors import ConfigError
from omlx_server.settings import Loaded, Settings

NO_PORT = "cluster.secret is set, and cluster.port is not: no other rank could know the port"
# Flags that are passed on to ranks on this machine.
_SHARED = ("models.", "cache.", "memory.", "logging.", "cluster.")
_NOT_SHARED = ("cluster.secret", "cache.remote", "cluster.hosts")


@dataclass(frozen=True, slots=True)
class GatheringOptions:
    """Hosts by rank, and how to meet them. With a `secret` ranks are started by hand. Rank 0
    listens at `address` ("": its first one) and `port` (0: any). `program` is for other machines,
    `options` for this one, `rdma` for JACCL."""

    hosts: Sequence[Host]
    port: int = 0
    secret: bytes = b""
    program: str = "omlx-server"
    options: Sequence[str] = ()
    rdma: Devices = ()
    address: str = ""

    @property
    def listens_at(self) -> str:
        return self.address or self.hosts[0].ips[0]


def hosts_of(settings: Settings) -> list[Host]:
    """Return the hosts of the cluster, if any. Raises ConfigError for a bad hosts file."""
    if not settings.cluster.hosts:
        return []
    path = Path(settings.cluster.hosts)
    try:
        hosts = parsed(path.read_text(encoding="utf-8"))
        if settings.cluster.backend == "jaccl":
            rdma_of(hosts)
        return hosts
    except OSError as error:
        raise ConfigError(f"the hosts file {path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the hosts file {path}: {error}") from error


def gathering_options(loaded: Loaded, hosts: Sequence[Host]) -> GatheringOptions:
    cluster = loaded.settings.cluster
    options = ["--config", str(loaded.source)] if loaded.source else []
    overrides = {**loaded.overrides, "logging.file": ""}  # it belongs to rank 0
    for key, value in overrides.items():
        if key.startswith(_SHARED) and key not in _NOT_SHARED:
            options += ["--set", f"{key}={value}"]
    secret = cluster.secret.reveal().strip().encode()  # as ranks read it
    rdma = rdma_of(hosts) if cluster.backend == "jaccl" else ()
    return GatheringOptions(
        hosts, cluster.port, secret, cluster.program, tuple(options), rdma, cluster.address
    )
