"""A rank takes the place of the process that had it, and ends no other."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omlx_server.process.place import take_place
from tests.api.harness import PATIENCE

NAME = "a machine-1-1"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the process id of who has the place stands."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"omlx-server-{os.getuid()}-a_machine-1-1.pid"


@contextmanager
def running(*words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that sleeps, and has these words on its command line."""
    program = "import time; print(flush=True); time.sleep(600)"
    command = [sys.executable, "-S", "-c", program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # from now on the system knows its command line
        try:
            yield process
        finally:
            process.kill()


def test_who_has_the_place_is_killed(file: Path) -> None:
    with running("--instead-of", NAME) as former:
        file.write_text(str(former.pid))
        take_place(NAME)
        former.wait(PATIENCE)
    assert file.read_text() == str(os.getpid())


@pytest.mark.parametrize("words", [("--instead-of", "another"), (NAME,)], ids=str)
def test_a_process_that_got_its_number_later_is_left_alone(
    file: Path, words: tuple[str, ...]
) -> None:
    with running(*words) as stranger:
        file.write_text(str(stranger.pid))
        take_place(NAME)
        assert stranger.poll() is None
    assert file.read_text() == str(os.getpid())


def test_a_link_in_its_place_is_not_written_through(file: Path) -> None:
    precious = file.with_name("precious")
    precious.write_text("text")
    file.symlink_to(precious)
    take_place(NAME)
    assert precious.read_text() == "text"
    assert file.read_text() == str(os.getpid())
