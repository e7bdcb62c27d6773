"""A hosts file that lacks what the back end needs is refused before anything is started."""

import json
from pathlib import Path
from typing import Any

import pytest

from omlx_server.errors import ConfigError
from omlx_server.settings.sections import ClusterSettings, Settings
from omlx_server.wiring.cluster.options import hosts_of

PLAIN = [{"ssh": "", "ips": ["10.0.0.1"]}, {"ssh": "b", "ips": ["10.0.0.2"]}]


def settings(directory: Path, hosts: list[dict[str, Any]], backend: Any) -> Settings:
    file = directory / "hosts.json"
    file.write_text(json.dumps(hosts))
    return Settings(cluster=ClusterSettings(hosts=str(file), backend=backend))


def test_jaccl_needs_devices_and_the_ring_does_not(tmp_path: Path) -> None:
    assert len(hosts_of(settings(tmp_path, PLAIN, "ring"))) == 2
    with pytest.raises(ConfigError, match=r"hosts\.json: host 0 has no RDMA devices"):
        hosts_of(settings(tmp_path, PLAIN, "jaccl"))
    rdma = ([None, "rdma_en2"], ["rdma_en3", None])
    connected = [{**host, "rdma": own} for host, own in zip(PLAIN, rdma, strict=True)]
    assert hosts_of(settings(tmp_path, connected, "jaccl"))[1].rdma == (("rdma_en3",), ())
