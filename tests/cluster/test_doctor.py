"""`omlx-server doctor --hosts FILE`: the real ranks, by an ssh that reaches machines which are
directories."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from omlx_server.cli.look import doctor
from omlx_server.doctor.cluster import check
from tests.api.harness import PATIENCE, wait_for
from tests.cluster.group import free_ports
from tests.cluster.machines import MODEL, Machines
from tests.cluster.servers import is_gone
from tests.doctor.well import WELL

Rows = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    return Machines(tmp_path_factory.mktemp("machines"))


@pytest.fixture
def machines(made: Machines, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    """All processes that are begun have to end."""
    made.enter(monkeypatch)
    monkeypatch.setattr(doctor, "_PROBE", WELL)
    for name in ("MEETING_SECONDS", "SUMMING_SECONDS"):
        monkeypatch.setattr(check, name, PATIENCE)
    before = set(psutil.Process().children(recursive=True))
    yield made
    begun = set(psutil.Process().children(recursive=True)) - before
    wait_for(lambda: all(map(is_gone, begun)))


def says(hosts: str, *more: str) -> tuple[int, Rows]:
    """The exit code, and what is said of the cluster, by what was looked at."""
    words = ["doctor", "--json", "--set", "server.port=0", "--hosts", hosts, "--model", MODEL]
    result = CliRunner().invoke(app, [*words, *more])
    rows = {row["what"]: row for row in json.loads(result.stdout)["findings"]}
    names = list(rows)
    return result.exit_code, {name: rows[name] for name in names[names.index("clients") + 1 :]}


def test_a_cluster_that_is_well_is_met_connected_and_measured(machines: Machines) -> None:
    code, rows = says(machines.hosts(["localhost", "studio"]))
    assert code == 0, rows
    names = ["hosts", "address", "rank 1", "rank 2", "group", "latency", "network"]
    assert list(rows) == names
    assert [rows[name]["level"] for name in names[:5]] == ["ok"] * 5, rows
    assert "studio answers, has the model, and omlx_server" in rows["rank 2"]["says"]
    assert rows["group"]["says"] == "3 ranks are connected (ring)"
    # How fast they are is a matter of the machine; of 2 layers a token waits for 4 sums.
    assert "of org/tiny waits for 4: at most" in rows["latency"]["says"]
    assert "Gbit/s; prompts of org/tiny at most" in rows["network"]["says"]


def test_each_machine_is_told_what_is_wrong_with_it(machines: Machines) -> None:
    hosts = machines.hosts(["locked", "bare", "old", "other", "studio"], studio="192.0.2.1")
    code, rows = says(hosts)
    assert code == 1
    assert list(rows) == ["hosts", "address", *(f"rank {number}" for number in range(1, 6))]
    assert "locked: Permission denied (publickey)." in rows["rank 1"]["says"]
    assert rows["rank 1"]["fix"] == "a key for ssh: ssh-copy-id locked"
    assert "not found" in rows["rank 2"]["says"]
    assert "cluster.program" in rows["rank 2"]["fix"]
    assert "mlx-lm 9.9 and not " in rows["rank 3"]["says"]
    assert "omlx-server version" in rows["rank 3"]["fix"]
    assert "is another model than the org/tiny of rank 0" in rows["rank 4"]["says"]
    assert "192.0.2.1 is no address of this machine" in rows["rank 5"]["says"]


def test_who_does_not_answer_is_not_waited_for_without_end(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MEETING_SECONDS", 0.5)
    port = f"cluster.port={free_ports(1)[0]}"
    by_hand = ("--set", "cluster.secret=a long random text", "--set", port)
    for more, fix in (((), "try it: ssh silent true"), (by_hand, "start it there: omlx-server")):
        code, rows = says(machines.hosts(["silent"]), *more)
        assert code == 1
        assert "silent did not come for" in rows["rank 1"]["says"]
        assert rows["rank 1"]["fix"].startswith(fix)


def test_an_address_that_rank_0_can_not_have_ends_it_before_ranks_are_started(
    machines: Machines, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([{"ips": ["192.0.2.1"]}, {"ips": ["192.0.2.2"]}]))
    code, rows = says(str(hosts))
    assert (code, list(rows)) == (1, ["hosts", "address"])
    assert "192.0.2.1 is no address of this machine" in rows["address"]["says"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, rows = says(machines.hosts(["silent"]), "--set", f"cluster.port={port}")
    assert "it is in use" in rows["address"]["says"]
    assert "cluster.port" in rows["address"]["fix"]
    code, rows = says(machines.hosts(["silent"]), "--set", "cluster.secret=a long random text")
    assert "cluster.port 7000" in rows["address"]["fix"]


def test_without_hosts_or_the_model_there_is_one_line(machines: Machines) -> None:
    code, rows = says("/nowhere/hosts.json")
    assert (code, list(rows)) == (1, ["hosts"])
    assert "can't be read" in rows["hosts"]["says"]
    code, rows = says(machines.hosts(["studio"]), "--model", "org/later")
    assert (code, list(rows)) == (1, ["hosts", "group"])
    assert rows["group"]["fix"] == "omlx-server pull org/later"
