"""Hosts files, as mlx.launch takes them."""

import json
from collections.abc import Sequence

import pytest

from omlx_server.core.cluster.hosts import Host, parsed, rdma_of

ONE = {"ssh": "a", "ips": ["10.0.0.1"]}


def test_hosts_are_read_by_rank() -> None:
    text = json.dumps(
        [
            {"ssh": "", "ips": ["10.0.0.1", "10.0.1.1"], "rdma": [None, "rdma_en2"]},
            {"ssh": "me@studio-2", "ips": ["fd00::2"]},
        ]
    )
    here, other = parsed(text)
    assert here == Host("", ("10.0.0.1", "10.0.1.1"), ((), ("rdma_en2",)))
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
        ([ONE, {"ssh": "b", "ips": [5]}], "host 1: 5 is no IP address"),
        ([ONE, {**ONE, "rdma": "rdma_en2"}], 'host 1: "rdma" has one entry for each host'),
        ([ONE, {**ONE, "rdma": [2, None]}], 'host 1: "rdma" has one entry for each host'),
        ([ONE, {**ONE, "rdma": [["a", None], None]}], 'host 1: "rdma" has one entry'),
    ],
)
def test_what_is_no_hosts_file_is_refused_in_words(hosts: object, why: str) -> None:
    text = hosts if isinstance(hosts, str) else json.dumps(hosts)
    with pytest.raises(ValueError, match=why):
        parsed(text)


def with_devices(*rows: Sequence[object], ip: str = "10.0.0.1") -> list[Host]:
    return parsed(json.dumps([{"ssh": "a", "ips": [ip], "rdma": row} for row in rows]))


def test_devices_of_a_mesh_are_those_of_each_rank_to_each_other() -> None:
    hosts = with_devices([None, "a", ["b", "c"]], ["d", None, "e"], [["f", "g"], "h", None])
    assert rdma_of(hosts) == (
        ((), ("a",), ("b", "c")),
        (("d",), (), ("e",)),
        (("f", "g"), ("h",), ()),
    )


def test_a_ring_needs_devices_to_both_neighbours_only() -> None:
    rows = [[None, "a", None, "b"], ["c", None, "d", None]]
    rows += [[None, "e", None, "f"], ["g", None, "h", None]]
    assert rdma_of(with_devices(*rows))[3] == (("g",), (), ("h",), ())


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        (with_devices([None, "a"], []), "host 1 has no RDMA devices"),
        (with_devices([None, "a"], ["b", None, "c"]), "host 1 has no RDMA devices"),
        (with_devices([None, "a"], ["b", "c"]), "host 1 has no RDMA devices"),
        (with_devices([None, "a"], [None, None]), "no RDMA device leads from host 1 to host 0"),
        (
            with_devices(
                [None, "a", None, None],
                ["b", None, "c", "d"],
                ["e", "f", None, "g"],
                ["h", "i", "j", None],
            ),
            "no RDMA device leads from host 0 to host 3",
        ),
        (with_devices([None, "a"], ["b", None], ip="fd00::1"), "IPv4"),
    ],
)
def test_jaccl_is_refused_without_all_that_it_needs(hosts: list[Host], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        rdma_of(hosts)
