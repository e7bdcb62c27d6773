"""The pause before a service's start, without sleeping."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omlx_server.process import failed_starts
from omlx_server.process.failed_starts import begin, empty_large_output, end, pause_seconds
from omlx_server.service.supervised import START_AGAIN


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".local" / "state" / "omlx_server" / "failed_starts"


def start(monkeypatch: pytest.MonkeyPatch, process: int) -> float:
    """The seconds that a start in this process waits."""
    waits: list[float] = []
    monkeypatch.setattr(os, "getpid", lambda: process)
    begin(waits.append)
    return sum(waits)


def test_the_pause_grows_to_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [start(monkeypatch, process) for process in range(1, 10)]
    assert waits == [0, 0, 10, 20, 40, 80, 160, 300, 300]
    assert pause_seconds(10_000) == 300


def test_a_clean_end_starts_the_count_anew(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    for process in range(1, 5):
        start(monkeypatch, process)
    end(0)
    assert not file.exists()
    assert [start(monkeypatch, process) for process in (5, 6, 7)] == [0, 0, 10]
    end(2)
    assert file.exists()
    end(START_AGAIN)
    assert not file.exists()
    end(0)


def test_a_server_that_is_no_service_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    start(monkeypatch, 1)
    monkeypatch.setattr(os, "getpid", lambda: 2)
    end(0)
    assert file.read_text() == "1 1"


def test_a_start_that_lasted_has_not_failed(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Nor do those before it count, nor one in the future: the clock was set."""
    for seconds in (-601, +100):
        for process in range(1, 5):
            start(monkeypatch, process)
        os.utime(file, (time.time() + seconds,) * 2)
        assert start(monkeypatch, 9) == 0
        assert file.read_text() == "1 9"


def test_a_process_that_starts_anew_in_place_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    """As it does when a wrong config was corrected."""
    for process in (1, 2, 3, 3, 3):
        last = start(monkeypatch, process)
    assert last == 0 and file.read_text() == "3 3"


def test_what_can_not_be_counted_keeps_nothing_from_starting(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("no numbers")
    assert start(monkeypatch, 1) == 0
    file.unlink()
    file.mkdir()
    assert [start(monkeypatch, process) for process in (1, 2, 3)] == [0, 0, 0]
    end(0)


def test_the_wait_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for process in (1, 2, 3):
        start(monkeypatch, process)
    assert capsys.readouterr().err == "2 starts have failed: the next one is in 10 s\n"


@pytest.mark.parametrize(("size", "left"), [(1_000_000, 1_000_000), (1_000_001, 0)])
def test_output_that_nobody_rotates_is_shortened(size: int, left: int, tmp_path: Path) -> None:
    path = tmp_path / "launchd.log"
    path.write_bytes(b"x" * size)
    with path.open("a") as file:
        empty_large_output(file.fileno())
    assert path.stat().st_size == left


def test_a_service_counts_and_others_do_not(tmp_path: Path, file: Path) -> None:
    """With the real program, whose address belongs to another machine."""
    command = [sys.executable, "-m", "omlx_server", "serve", "--host", "192.0.2.1"]
    command += ["--set", "auth.api_keys=sk-test"]
    for more, counted in (([], False), (["--degraded-on-error"], True)):
        done = subprocess.run(
            [*command, *more],
            cwd=failed_starts.__file__.split("/omlx_server/")[0],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 2 and "can't listen on 192.0.2.1" in done.stderr
        assert file.exists() is counted
    assert file.read_text().startswith("1 ")
