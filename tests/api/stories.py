"""A conversation that servers of tests are told, and what they say of it."""

import subprocess
import sys
from pathlib import Path

from tests.api.harness import REPO, ServerProcess, samples

STORY = "Once upon a time there was a disk that never forgot a block it was given. " * 8


def metrics(server: ServerProcess) -> dict[str, float]:
    return samples(server.http.get(f"{server.url}/metrics").text)


def program(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omlx_server", "cache", *arguments, "--dir", str(directory / "kv")],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
    )
