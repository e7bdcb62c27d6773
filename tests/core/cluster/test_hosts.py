"""The hosts file of a cluster is read as mlx.launch reads it."""

import json

import pytest

from omlx_server.core.cluster.hosts import Host, parsed

HOSTS = [{"ssh": "one", "ips": ["10.0.0.1"], "rdma": []}, {"ssh": "localhost", "ips": ["::1"]}]


@pytest.mark.parametrize("form", [HOSTS, {"backend": "ring", "envs": [], "hosts": HOSTS}])
def test_a_list_of_hosts_and_an_object_around_it_are_read(form: object) -> None:
    found = parsed(json.dumps(form))
    assert found == [Host("one", ("10.0.0.1",)), Host("localhost", ("::1",))]
    assert [host.is_here for host in found] == [False, True]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "no JSON"),
        ("{}", "two hosts or more"),
        (json.dumps(HOSTS[:1]), "two hosts or more"),
        (json.dumps([HOSTS[0], {"ssh": "two"}]), "host 1 has no addresses"),
        (json.dumps([HOSTS[0], {"ssh": "-oProxyCommand=x", "ips": ["::1"]}]), "no name for ssh"),
        (json.dumps([HOSTS[0], {"ssh": "two", "ips": ["studio"]}]), "'studio' is no IP address"),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parsed(text)
