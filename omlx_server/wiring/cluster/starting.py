"""Starts the processes of other ranks: here, or on other machines by ssh."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.core.cluster.hosts import Host

_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")


@dataclass(frozen=True, slots=True)
class RankCommand:
    """The command line that starts one rank. It reads the secret of the cluster from its standard
    input, and ends with that."""

    words: Sequence[str]

    def __str__(self) -> str:
        return shlex.join(self.words)

    def start(self, secret: bytes) -> "subprocess.Popen[bytes]":
        """Start it. Raises OSError where the program can't be run."""
        process = subprocess.Popen(
            self.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for rank 0, which ends the others in order
        )
        assert process.stdin is not None
        process.stdin.write(secret.hex().encode() + b"\n")
        process.stdin.flush()
        return process


def command_of(
    host: Host, rank: int, leader: str, program: str, options: Sequence[str] = ()
) -> RankCommand:
    """The command for a rank whose rank 0 listens at `leader`, HOST:PORT. On other machines it runs
    `program`; here it is this one, with these `options` for its settings. A process that has the
    place of the rank already is killed: it may be stopped, and hold the memory of its part."""
    place = f"{platform.node()}-{os.getpid()}-{rank}"
    own = ("rank", str(rank), "--leader", leader, "--instead-of", place)
    if host.is_here:
        return RankCommand((sys.executable, "-m", "omlx_server", *own, *options))
    return RankCommand((*_SSH, host.ssh, f"exec {program} {shlex.join(own)}"))
