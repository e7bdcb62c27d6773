"""The report that a reboot leaves, and what the doctor says of it."""

import os
from pathlib import Path

import psutil
import pytest

from omlx_server.doctor.stress.report import PhaseFigures, StressReport, unfinished

DEAD = 2**30  # no process has this id


@pytest.mark.parametrize(
    ("boot_time", "pid", "words"),
    [
        (psutil.boot_time(), DEAD, "in phase two streams; its process was killed"),
        (1e9, DEAD, "in phase two streams; the machine has rebooted since"),
        (1e9, os.getpid(), "in phase two streams; the machine has rebooted since"),
        (psutil.boot_time(), os.getpid(), None),
    ],
    ids=["killed", "rebooted", "rebooted with its number", "runs"],
)
def test_only_a_test_that_neither_finished_nor_runs_is_told(
    boot_time: float, pid: int, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state" / "stress.json"
    assert unfinished(file) is None
    with monkeypatch.context() as then:
        then.setattr(psutil, "boot_time", lambda: boot_time)
        then.setattr(os, "getpid", lambda: pid)
        report = StressReport([file, tmp_path / "copy.json"], {"ok": True})
    report.write("two streams")
    finding = unfinished(file)
    assert (finding is None) == (words is None)
    if finding is not None and words is not None:
        assert finding.says.endswith(words)
        assert str(file) in finding.fix
    report.write(None)
    assert unfinished(file) is None
    assert file.read_text() == (tmp_path / "copy.json").read_text()
    assert list(file.parent.iterdir()) == [file]


def test_a_phase_that_fails_fails_the_report(tmp_path: Path) -> None:
    report = StressReport([tmp_path / "stress.json"], {"ok": True})
    report.add("load", PhaseFigures(requests=1))
    assert report.write("two streams")["ok"]
    report.add("two streams", PhaseFigures(exit_code=-6))
    report.add("longest prompt", PhaseFigures(requests=1))
    assert not report.write(None)["ok"]


def test_a_file_that_is_no_report_is_none(tmp_path: Path) -> None:
    file = tmp_path / "stress.json"
    for text in ("", "[]", "{}", "null", '{"phase": "load", "pid": 1, "boot_time": "now"}'):
        file.write_text(text)
        assert unfinished(file) is None
