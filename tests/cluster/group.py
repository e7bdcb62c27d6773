"""Processes of this machine that compute tiny models together."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omlx_server.process.ports import next_free
from tests.cluster.scenarios import Answers, Reply, Scenario

REPO = Path(__file__).parent.parent.parent


class Group:
    """`size` ranks, of which the first is asked for answers."""

    def __init__(self, processes: Sequence["subprocess.Popen[str]"]) -> None:
        self._first = processes[0]

    def answers(self, scenario: Scenario) -> Answers:
        return self.reply(scenario).answers

    def reply(self, scenario: Scenario) -> Reply:
        assert self._first.stdin is not None
        assert self._first.stdout is not None
        self._first.stdin.write(json.dumps(scenario.as_json()) + "\n")
        self._first.stdin.flush()
        line = self._first.stdout.readline()
        assert line, "the group is gone"
        return Reply(**json.loads(line))


@contextmanager
def group(size: int) -> Iterator[Group]:
    with programs("tests.cluster.rank", size, free_ports(1 + size)) as processes:
        yield Group(processes)


@contextmanager
def programs(
    module: str, size: int, ports: Sequence[int]
) -> Iterator[Sequence["subprocess.Popen[str]"]]:
    """So many processes of a module for one `with`; each is told its rank, and all ports."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), *map(str, ports)],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def free_ports(count: int) -> list[int]:
    """So many free ports that the system is unlikely to give to others soon."""
    found, port = list[int](), 20_000 + os.getpid() * 37 % 10_000
    while len(found) < count:
        free = next_free("127.0.0.1", port)
        assert free is not None
        found.append(free)
        port = free
    return found
