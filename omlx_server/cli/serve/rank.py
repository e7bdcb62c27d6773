"""`omlx-server rank`: computes a part of the model of a server on another machine."""

import sys
from collections.abc import Sequence
from pathlib import Path

from omlx_server.cli.shell.options import load_settings
from omlx_server.errors import UsageError
from omlx_server.process.place import take_place


def run(number: int, leader: str, place: str, config: Path | None, sets: Sequence[str]) -> int:
    """Be this rank of the cluster whose rank 0 listens at `leader`, HOST:PORT. Raises UsageError
    when that can't be, or rank 0 refuses it."""
    host, _, port = leader.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--leader {leader}: expected HOST:PORT", hint="for example 10.0.0.1:7000")
    settings = load_settings(config, sets).settings
    secret = secret_in(sys.stdin.readline().strip(), by_rank_0=bool(place))
    if place:
        take_place(place)
    from omlx_server.process.rank import run_rank

    run_rank(number, (host.strip("[]"), int(port)), secret, settings)
    return 0


def secret_in(line: str, *, by_rank_0: bool) -> bytes:
    """The secret in a line: in hexadecimal digits where it comes from rank 0, else the text that
    cluster.secret is, even if it has such digits only. Raises UsageError where there is none."""
    if not line:
        raise UsageError("there is no secret on the standard input", hint="omlx-server help rank")
    if not by_rank_0:
        return line.encode()
    try:
        return bytes.fromhex(line)
    except ValueError as error:
        raise UsageError("the secret is not that of a rank 0: leave out --instead-of") from error
