"""A server whose cluster is lost replaces its process; where it can't, or stops, it ends."""

import subprocess
import sys

from tests.cli.program import ROOT

LOST = """
import socket, sys
from omlx_server.process.cluster import leader
leader._LEAST_LIFE_SECONDS = leader._LAST_WORDS_SECONDS = 0
sys.executable = "/nowhere/python"
drain = lambda seconds: print("drains for", seconds, flush=True)
stops = sys.argv[1] == "stops"
leader._start_anew(socket.create_server(("127.0.0.1", 0)), drain, lambda: stops)
"""


def start_anew(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", LOST, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_where_it_can_not_start_anew_it_ends_with_the_reason() -> None:
    done = start_anew("goes on")
    assert (done.returncode, done.stdout) == (1, "drains for 3.0\n")
    assert "the server can't start anew" in done.stderr
    assert "No such file or directory" in done.stderr


def test_a_server_that_was_told_to_stop_does_not_start_anew() -> None:
    done = start_anew("stops")
    assert (done.returncode, done.stdout, done.stderr) == (0, "drains for 3.0\n", "")
