"""A Mac is kept awake while there is work, here with a program that stands for `caffeinate`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from omlx_server.process.keep_awake import KeepAwake, find_program

# As caffeinate it runs what it was given; each start is a line.
FAKE = '#!/bin/sh\necho "$*" >> {notes}\nshift\nexec {utility}\n'
OUTLIVED = """
import sys, time
from omlx_server.process.keep_awake import KeepAwake
awake = KeepAwake(sys.argv[1])
awake.look(0, has_work=True)
print(awake._child.pid, flush=True)
time.sleep(60)
"""


class Mac:
    """A folder with a `caffeinate`."""

    def __init__(self, folder: Path, utility: str = '"$@"') -> None:
        self.program, self._notes = folder / "caffeinate", folder / "notes"
        self._notes.touch()
        self.program.write_text(FAKE.format(notes=self._notes, utility=utility))
        self.program.chmod(0o755)

    def starts(self, awake: KeepAwake) -> int:
        if awake._child is not None and awake.is_awake:  # it has written its line when it echoes
            process = psutil.Process(awake._child.pid)
            while process.is_running() and process.name() != "cat":
                pass
        return len(self._notes.read_text().splitlines())


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    return Mac(tmp_path)


def test_it_is_started_once_for_requests_one_after_another(mac: Mac) -> None:
    awake = KeepAwake(str(mac.program))
    for second in range(100):
        awake.look(second, has_work=second % 20 == 0)
    assert mac.starts(awake) == 1
    awake.look(109.9, has_work=False)
    states = [awake.is_awake]
    awake.look(110, has_work=False)
    states.append(awake.is_awake)
    awake.look(111, has_work=True)
    assert mac.starts(awake) == 2
    awake.end()
    assert [*states, awake.is_awake] == [True, False, False]


def test_one_that_ends_by_itself_is_started_again_after_a_minute(tmp_path: Path) -> None:
    mac = Mac(tmp_path, utility="true")
    awake = KeepAwake(str(mac.program))
    for second in range(121):
        awake.look(second, has_work=True)
        assert awake._child is not None
        awake._child.wait()
    assert mac.starts(awake) == 3
    awake.end()


def test_without_a_program_nothing_is_done(tmp_path: Path) -> None:
    awake = KeepAwake(None)
    awake.look(0, has_work=True)
    assert not awake.is_awake
    awake.end()


def test_a_program_that_cannot_run_is_told_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    awake = KeepAwake(str(tmp_path))
    for second in range(60):
        awake.look(second, has_work=True)
    assert len(caplog.records) == 1
    assert "may sleep" in caplog.text


def test_it_is_looked_for_on_a_mac_only(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(mac.program.parent))
    monkeypatch.setattr(sys, "platform", "linux")
    assert find_program() is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert find_program() == str(mac.program)


def test_it_does_not_outlive_a_server_that_is_killed(mac: Mac) -> None:
    command = [sys.executable, "-c", OUTLIVED, str(mac.program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        child = psutil.Process(int(server.stdout.readline()))
        assert child.is_running()
        os.kill(server.pid, signal.SIGKILL)
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running()
