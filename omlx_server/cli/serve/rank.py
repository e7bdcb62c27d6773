"""`omlx-server rank`: computes a part of the model of a server on another machine."""

import sys
from collections.abc import Sequence
from pathlib import Path

from omlx_server.cli.shell.options import load_settings
from omlx_server.errors import UsageError
from omlx_server.process.place import take_place


def run(number: int, leader: str, instead_of: str, config: Path | None, sets: Sequence[str]) -> int:
    """Be rank `number` of the cluster whose rank 0 listens at `leader`. Raises UsageError."""
    host, _, port = leader.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--leader {leader}: expected HOST:PORT", hint="for example 10.0.0.1:7000")
    settings = load_settings(config, sets).settings
    secret = sys.stdin.readline().strip().encode()
    if not secret:
        raise UsageError("there is no secret on the standard input", hint="omlx-server help rank")
    if instead_of:
        take_place(instead_of)
    from omlx_server.process.cluster.rank import run_rank

    run_rank(number, (host.strip("[]"), int(port)), secret, settings)
    return 0
