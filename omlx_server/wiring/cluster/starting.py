"""Starts the processes of other ranks, here or by ssh, and logs what they write."""

import json
import logging
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

_log = logging.getLogger(__name__)
_LONGEST = 200  # characters of a reason
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
# Rank 0 logs what a rank writes, and reads the level of each line.
_LOGS = ("--set", "logging.file=", "--set", "logging.format=json")
_ALIVE = (
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
)  # else a lost machine would hang


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The command line of one rank, which reads the cluster's secret from standard input."""

    words: Sequence[str]

    def __str__(self) -> str:
        return shlex.join(self.words)

    def start(self, secret: bytes) -> "subprocess.Popen[bytes]":
        """Start it and send the secret. Raises OSError if the program can't run."""
        process = subprocess.Popen(
            self.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C reaches rank 0 only, which ends the others
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; its standard error says why
            os.write(process.stdin.fileno(), secret + b"\n")
        return process


def command_lines_of(options: GatheringOptions, leader: str, pid: int | str) -> list[CommandLine]:
    """Return the commands for ranks 1 and up of the rank 0 at `leader` (HOST:PORT)."""
    return [
        command_line_of(host, rank, leader, options, f"{platform.node()}-{pid}-{rank}")
        for rank, host in enumerate(options.hosts)
        if rank
    ]


def command_line_of(
    host: Host, rank: int, leader: str, options: GatheringOptions, place: str
) -> CommandLine:
    """Return the command for one rank, which kills a process that has this `place` already."""
    words = ("rank", str(rank), "--leader", leader, "--instead-of", place)
    if host.is_here:
        return CommandLine(
            (sys.executable, "-P", "-m", "omlx_server", *words, *options.options, *_LOGS)
        )
    remote = f"exec {options.program} {shlex.join((*words, *_LOGS))}"
    return CommandLine((*_SSH, *_ALIVE, host.ssh, remote))


def line_by_hand(options: GatheringOptions, rank: int, leader: str) -> str:
    """Return the shell command for users; FILE stands for the secret's file."""
    more = options.options if options.hosts[rank].is_here else ()
    words = ("rank", str(rank), "--leader", leader, *more)
    return f"{options.program} {shlex.join(words)} < FILE"


def log_output(process: "subprocess.Popen[bytes]", rank: int) -> str:
    """Log the output of a rank until it ends. Return its last problem."""
    assert process.stderr is not None
    last = ""
    for line in process.stderr:
        text = line.decode(errors="replace").strip()
        if not text:
            continue
        level, message = _parted(text)
        _log.log(level, "rank %d: %s", rank, message, extra={"fields": {"rank": rank}})
        if not message.startswith("hint: "):
            last = message.removeprefix("error: ")
    return last[-_LONGEST:]


def _parted(text: str) -> tuple[int, str]:
    try:
        line = json.loads(text)
        level = logging.getLevelNamesMapping()[line["level"].upper()]
        message, exception = line["message"], line.get("exception", "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return logging.ERROR if text.startswith("error: ") else logging.INFO, text
    return level, f"{message}\n{exception}".strip()
