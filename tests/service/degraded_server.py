"""A server whose config is wrong."""

import http.client
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """One that the system gives to nobody by itself, so that it is still free when it is used."""
    for port in random.Random(os.getpid()).sample(range(20_000, 30_000), 100):
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("all of them are taken")


@contextmanager
def degraded(
    config: Path, words: Sequence[str] = (), **environ: str
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "omlx_server", "serve", *words, "--degraded-on-error"]
    own = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    with (config.parent / "out").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--config", str(config)], env=own, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(
    port: int, path: str, method: str = "GET", body: str | None = None, host: str = "localhost"
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"host": host, "content-type": "application/json"}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    try:
        return response.status, response.read().decode()
    finally:
        connection.close()


def wait_for(port: int, path: str, status: int, words: str = "") -> str:
    """The answer, once it has this status and these words."""
    answer, until = (0, "nobody answers"), time.monotonic() + 120
    while time.monotonic() < until:
        try:
            answer = ask(port, path)
        except OSError:
            answer = (0, "nobody answers")
        if answer[0] == status and words in answer[1]:
            return answer[1]
        time.sleep(0.05)
    raise AssertionError(answer)
