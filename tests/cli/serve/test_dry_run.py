"""`serve --hosts FILE --dry-run` shows how ranks would be started, and starts nothing."""

import json
import platform
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from tests.cli.home import CONFIG
from tests.cli.program import HEAVY, imports_of
from tests.models.directories import make

HOSTS = [
    {"ssh": "studio-1", "ips": ["10.0.0.1", "10.0.1.1"]},
    {"ssh": "me@studio-2", "ips": ["10.0.0.2"]},
    {"ssh": "localhost", "ips": ["127.0.0.1"]},
]
SSH = (
    "ssh -o BatchMode=yes -o ConnectTimeout=5"
    " -o ServerAliveInterval=5 -o ServerAliveCountMax=3 me@studio-2 "
)
LOGS = "--set logging.file= --set logging.format=json"


@pytest.fixture
def hosts(home: Path) -> Path:
    make(home / "my-model")
    file = home / "hosts.json"
    file.write_text(json.dumps(HOSTS))
    return file


def shown(hosts: Path, *more: str) -> list[str]:
    words = ["serve", "./my-model", "--hosts", str(hosts), "--dry-run", *more]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_each_rank_is_shown_with_the_command_that_would_start_it(hosts: Path, home: Path) -> None:
    (home / CONFIG).write_text("[cluster]\nport = 7000\n")
    sets = ("--set", "memory.limit=1GB", "--set", "server.port=1", "--set", "cluster.port=7001")
    lines = shown(hosts, *sets)
    assert lines[:2] == [
        "3 ranks would compute ./my-model, connected by MLX's ring back end.",
        "rank 0: this process. It would await the other ranks at 10.0.0.1:7001.",
    ]
    assert lines[2] == "rank 1: it would be started on me@studio-2 by ssh:"
    place = f"{platform.node()}-PID"
    own = f"omlx-server rank 1 --leader 10.0.0.1:7001 --instead-of {place}-1 {LOGS}"
    assert lines[3].strip() == f"{SSH}'exec {own}'"
    assert lines[4] == "rank 2: it would be started on this machine:"
    assert shlex.split(lines[5]) == [
        *(sys.executable, "-P", "-m", "omlx_server", "rank", "2", "--leader", "10.0.0.1:7001"),
        *("--instead-of", f"{place}-2", "--config", str(home / CONFIG)),
        *("--set", "memory.limit=1GB", "--set", "cluster.port=7001", "--set", "logging.file="),
        *LOGS.split(),
    ]
    assert "Each rank gets a secret, made at each start, on its standard input." in lines
    assert lines[-1].startswith("Nothing was started.")


def test_what_is_only_known_later_is_said_to_be(hosts: Path) -> None:
    lines = shown(hosts)
    assert "10.0.0.1:PORT" in lines[1] and "--leader 10.0.0.1:PORT" in lines[3]
    assert "PORT would be any free one, since cluster.port is 0." in lines
    assert "PID would be the process id of rank 0." in lines


def test_with_a_secret_the_lines_are_for_the_user_and_do_not_hold_it(hosts: Path) -> None:
    sets = ("--set", "cluster.secret=a long random text", "--set", "cluster.port=7000")
    more = ("--set", "cluster.address=10.0.0.9", "--set", "cluster.program=~/bin/omlx-server")
    lines = shown(hosts, *sets, *more)
    assert lines[2] == "rank 1: to be started on me@studio-2 by hand, where FILE holds the secret:"
    assert lines[3].strip() == "~/bin/omlx-server rank 1 --leader 10.0.0.9:7000 < FILE"
    assert "a long random text" not in "".join(lines) and "PID" not in "".join(lines)
    assert "PORT changes at each start: set cluster.port." in shown(hosts, *sets[:2])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("starter", "there is no hosts file"),
        ("starter --hosts nowhere.json", "the hosts file nowhere.json can't be read"),
        ("starter --hosts my-model/config.json", "two hosts or more"),
        ("./nothing --hosts hosts.json", "nothing does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(words: str, said: str, hosts: Path) -> None:
    result = CliRunner().invoke(app, ["serve", *words.split(), "--dry-run"])
    assert result.exit_code == 2
    assert said in result.stderr.splitlines()[0]


def test_it_loads_nothing_heavy(hosts: Path) -> None:
    names, _ = imports_of(
        "serve", str(hosts.parent / "my-model"), "--hosts", str(hosts), "--dry-run", code=0
    )
    assert not names & (HEAVY - {"rich"})
