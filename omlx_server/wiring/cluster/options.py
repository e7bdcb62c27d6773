"""How the ranks of a cluster are started and met, as the settings of rank 0 say. Without MLX, so
that `serve --dry-run` and the doctor can ask at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx_server.core.cluster.hosts import Devices, Host, parsed, rdma_of
from omlx_server.errors import ConfigError
from omlx_server.settings import Loaded, Settings

NO_PORT = "cluster.secret is set, and cluster.port is not: no other rank could know the port"
"""What is wrong with a secret and no port."""
# Overrides by flags that ranks on this machine get too.
_SHARED = ("models.", "cache.", "memory.", "logging.", "cluster.")
_NOT_SHARED = ("cluster.secret", "cache.remote", "cluster.hosts")


@dataclass(frozen=True, slots=True)
class GatheringOptions:
    """`hosts` by rank; with a `secret` ranks are started by hand, and know it. Rank 0 listens at
    `address`, "" for its first one, and `port`, 0 for any. `program` is that on other machines,
    and `options` are those of ranks on this one. `rdma`: the devices between them, for the back
    end JACCL."""

    hosts: Sequence[Host]
    port: int = 0
    secret: bytes = b""
    program: str = "omlx-server"
    options: Sequence[str] = ()
    rdma: Devices = ()
    address: str = ""

    @property
    def listens_at(self) -> str:
        """The address at which other ranks reach rank 0."""
        return self.address or self.hosts[0].ips[0]


def hosts_of(settings: Settings) -> list[Host]:
    """The hosts of the cluster, or none where there is no cluster. Raises ConfigError where the
    file can't be read, or lacks the devices that the back end needs."""
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
    """How the ranks of these hosts are started and met."""
    own = loaded.settings.cluster
    options = ["--config", str(loaded.source)] if loaded.source else []
    overrides = {**loaded.overrides, "logging.file": ""}  # it is that of rank 0
    for key, value in overrides.items():
        if key.startswith(_SHARED) and key not in _NOT_SHARED:
            options += ["--set", f"{key}={value}"]
    secret = own.secret.reveal().strip().encode()  # as ranks read it
    rdma = rdma_of(hosts) if own.backend == "jaccl" else ()
    return GatheringOptions(hosts, own.port, secret, own.program, tuple(options), rdma, own.address)
