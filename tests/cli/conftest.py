"""Each test of the command line runs in an empty home, without settings of whoever runs it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.home import CONFIG

FAKE_SERVER = Path(__file__).with_name("fake_server.py")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("OMLX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / CONFIG).parent.mkdir(mode=0o700, parents=True)
    return tmp_path


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A server that speaks the chat API, as a process of its own."""
    with subprocess.Popen(
        [sys.executable, str(FAKE_SERVER)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.terminate()
