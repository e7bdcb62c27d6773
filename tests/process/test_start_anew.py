"""A server whose cluster is lost, and that can't replace its process, ends."""

import subprocess
import sys

from tests.cli.program import ROOT

LOST = """
import socket, sys
from omlx_server.process import cluster
cluster._LEAST_SECONDS = cluster._LAST_WORDS_SECONDS = 0
sys.executable = "/nowhere/python"
drain = lambda seconds: print("drains for", seconds, flush=True)
cluster._start_anew(socket.create_server(("127.0.0.1", 0)), drain)
"""


def test_where_it_can_not_start_anew_it_ends_with_the_reason() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "drains for 3.0\n")
    assert "the server can't start anew" in done.stderr
    assert "No such file or directory" in done.stderr
