"""Starts the processes of other ranks: here, or on other machines by ssh."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from omlx_server.core.cluster.hosts import Host
from omlx_server.wiring.cluster.options import GatheringOptions

_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
# Rank 0 logs what a rank writes, and reads the level of each line.
_LOGS = ("--set", "logging.file=", "--set", "logging.format=json")
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")  # else a lost machine hangs


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The command line that starts one rank. The rank reads the secret of the cluster, a line, from
    its standard input."""

    words: Sequence[str]

    def __str__(self) -> str:
        return shlex.join(self.words)

    def start(self, secret: bytes) -> "subprocess.Popen[bytes]":
        """Start it, and hand it the secret, which is a text of one line. Raises OSError where the
        program can't be run."""
        process = subprocess.Popen(
            self.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for rank 0, which ends the others in order
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and its standard error says why
            os.write(process.stdin.fileno(), secret + b"\n")
        return process


def command_lines_of(options: GatheringOptions, leader: str, pid: int | str) -> list[CommandLine]:
    """The commands that start rank 1 and all that follow, when rank 0 listens at `leader`,
    HOST:PORT, in the process `pid`."""
    return [
        command_line_of(host, rank, leader, options, f"{platform.node()}-{pid}-{rank}")
        for rank, host in enumerate(options.hosts)
        if rank
    ]


def command_line_of(
    host: Host, rank: int, leader: str, options: GatheringOptions, place: str
) -> CommandLine:
    """The command for one rank. On other machines it runs their program; here it is this one, with
    the options for its settings. A process that has this `place` already is killed: it may be
    stopped, and hold the memory of its part."""
    own = ("rank", str(rank), "--leader", leader, "--instead-of", place)
    if host.is_here:
        return CommandLine(
            (sys.executable, "-P", "-m", "omlx_server", *own, *options.options, *_LOGS)
        )
    remote = f"exec {options.program} {shlex.join((*own, *_LOGS))}"
    return CommandLine((*_SSH, *_ALIVE, host.ssh, remote))


def line_by_hand(options: GatheringOptions, rank: int, leader: str) -> str:
    """The shell command by which a user starts a rank that has to know `cluster.secret`. FILE
    stands for a file that holds the secret."""
    more = options.options if options.hosts[rank].is_here else ()
    words = ("rank", str(rank), "--leader", leader, *more)
    return f"{options.program} {shlex.join(words)} < FILE"
