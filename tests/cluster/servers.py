"""Servers over HTTP whose models are computed by several processes of this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.api.forked import environment
from tests.api.harness import UNPROBED, ServerProcess, wait_for

MODEL = "org/tiny"


def clustered(
    models: Path, directory: Path, *settings: str, model: str = MODEL, size: int = 2, port: int = 0
) -> ServerProcess:
    """A server that begins at this port, or any: rank 0 of so many ranks."""
    hosts = hosts_file(directory, size)
    sets = (f"models.dirs={models}", UNPROBED, f"cluster.hosts={hosts}", *settings)
    return ServerProcess(model, directory, sets, port=port, forked=False)


def hosts_file(directory: Path, size: int) -> Path:
    """A hosts file in this directory for so many ranks of this machine."""
    directory.mkdir(parents=True, exist_ok=True)
    hosts = directory / "hosts.json"
    hosts.write_text(json.dumps([{"ssh": "", "ips": ["127.0.0.1"]}] * size))
    return hosts


@dataclass
class ByHand:
    """Starts ranks by hand, as a user does, for the rank 0 that listens at this port. `directory`
    is where they write."""

    port: int
    secret: str
    models: Path
    directory: Path

    @contextmanager
    def rank(self, secret: str = "") -> Iterator["subprocess.Popen[str]"]:
        """`omlx-server rank 1` for one `with`, perhaps with another `secret`."""
        config = self.directory / "rank.toml"
        config.touch()
        sets = (f"models.dirs={self.models}", f"cache.cold_dir={self.directory / 'kv'}", UNPROBED)
        words = ["rank", "1", "--leader", f"127.0.0.1:{self.port}"]
        for each in (*sets, "cache.cold_min_free_disk=0"):
            words += ["--set", each]
        outer = {**os.environ, "PYTHONPATH": ""}
        process = subprocess.Popen(
            [sys.executable, "-m", "omlx_server", *words],
            cwd=self.directory,
            env=environment(outer, OMLX_CONFIG=str(config)),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write((secret or self.secret) + "\n")
        process.stdin.flush()
        with process:
            try:
                yield process
            finally:
                process.kill()


@contextmanager
def serving_together(
    models: Path, directory: Path, *settings: str, model: str = MODEL, size: int = 2
) -> Iterator[ServerProcess]:
    """A server of so many ranks for one `with`; it must end in peace, with all of them."""
    server = clustered(models, directory, *settings, model=model, size=size)
    try:
        server.wait_ready()
        yield server
        others = ranks(server)
        server.stop()
        wait_for(lambda: all(map(is_gone, others)))
    finally:
        end(server)


def ranks(server: ServerProcess) -> list[psutil.Process]:
    """The processes of its other ranks, which are its children."""
    if not server.running:
        return []
    children = psutil.Process(server.pid).children()
    return [child for child in children if is_rank(child)]


def number_of(process: psutil.Process) -> int:
    """The number of a rank; -1 where it is gone."""
    try:
        words = process.cmdline()
        return int(words[words.index("rank") + 1])
    except (psutil.Error, ValueError):
        return -1


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended, though its parent may not have asked for its exit code yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_rank(process: psutil.Process) -> bool:
    """Whether this is a rank that a rank 0 has started."""
    try:
        return "--instead-of" in process.cmdline()
    except psutil.Error:
        return False


def end(server: ServerProcess) -> None:
    """For the end of a test, however it went."""
    others = ranks(server)
    server.kill()
    for other in others:
        if other.is_running():
            other.kill()
