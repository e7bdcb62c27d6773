"""Hosts files, as mlx.launch takes them."""

import json

import pytest

from omlx_server.core.cluster.hosts import Host, parsed

ONE = {"ssh": "a", "ips": ["10.0.0.1"]}


def test_hosts_are_read_by_rank_and_other_fields_do_not_matter() -> None:
    text = json.dumps(
        [
            {"ssh": "", "ips": ["10.0.0.1", "10.0.1.1"], "rdma": [None, "rdma_en2"]},
            {"ssh": "me@studio-2", "ips": ["fd00::2"]},
        ]
    )
    here, other = parsed(text)
    assert here == Host("", ("10.0.0.1", "10.0.1.1"))
    assert here.is_here
    assert not other.is_here


def test_the_list_may_stand_in_an_object() -> None:
    hosts = [ONE, {"ssh": "b", "ips": ["10.0.0.2"]}]
    text = json.dumps({"backend": "ring", "envs": [], "hosts": hosts})
    assert [host.ssh for host in parsed(text)] == ["a", "b"]


@pytest.mark.parametrize("name", ["", "localhost", "127.0.0.1", "::1"])
def test_this_machine_has_several_names(name: str) -> None:
    assert Host(name, ("127.0.0.1",)).is_here


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ("{", "no JSON"),
        ([ONE], "two hosts or more"),
        ({"a": ONE}, "two hosts or more"),
        ([ONE, "10.0.0.2"], "host 1 has no name"),
        ([ONE, {"ssh": "-oProxyCommand=x", "ips": ["10.0.0.2"]}], "host 1 has no name"),
        ([ONE, {"ssh": "b"}], "host 1 has no addresses"),
        ([ONE, {"ssh": "b", "ips": []}], "host 1 has no addresses"),
        ([ONE, {"ssh": "b", "ips": ["studio.local"]}], "no IP address"),
    ],
)
def test_what_is_no_hosts_file_is_refused_in_words(hosts: object, why: str) -> None:
    text = hosts if isinstance(hosts, str) else json.dumps(hosts)
    with pytest.raises(ValueError, match=why):
        parsed(text)
