"""`omlx-server doctor --model NAME --stress MINUTES`, with real servers of a tiny model."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from omlx_server.cli.look import doctor, stress, stress_load
from omlx_server.cli.shell import stdin
from omlx_server.doctor.stress.report import StressReport
from tests.api.harness import PATIENCE, wait_for
from tests.cli.look.small_stress import PLAN
from tests.doctor.selftest.subjects import save_model
from tests.doctor.well import WELL

ROOT = Path(__file__).parents[3]
KEY = "sk-hunter2"
SETS = ("--set", "memory.activation_reserve=64MB", "--set", f"auth.api_keys={KEY}")
STRESS = ("doctor", "--model", "tiny", *SETS, "--stress")


@pytest.fixture
def model(home: Path) -> Path:
    (home / "tmp").mkdir()
    models = home / ".cache" / "omlx_server" / "models"
    return save_model(models / "org" / "tiny", hidden_size=64, intermediate_size=96)


@contextmanager
def running(home: Path) -> Iterator["subprocess.Popen[str]"]:
    line = [sys.executable, "-m", "tests.cli.look.small_stress", *STRESS, "5", "--yes"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home / "tmp")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        line, cwd=ROOT, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def state_file(home: Path) -> Path:
    return home / ".local" / "state" / "omlx_server" / "stress.json"


def report_in(home: Path) -> dict[str, Any]:
    file = state_file(home)
    report: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return report


def in_phase(home: Path, phase: str) -> Callable[[], bool]:
    return lambda: report_in(home).get("phase") == phase


def server_of(process: "subprocess.Popen[str]") -> psutil.Process:
    def child() -> psutil.Process | None:
        children = psutil.Process(process.pid).children()
        servers = (child for child in children if "--until-stdin-ends" in child.cmdline())
        return next(servers, None)

    return wait_for(child)


def ended(process: psutil.Process) -> Callable[[], bool]:
    """An orphan may be a zombie for some time."""
    return lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def last_test() -> list[dict[str, Any]]:
    said = CliRunner().invoke(app, ["doctor", "--json", "--set", "server.port=0"])
    return [row for row in json.loads(said.stdout)["findings"] if row["what"] == "stress"]


def test_a_sound_server_survives_and_the_report_says_what(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stress, "PLAN", PLAN)
    monkeypatch.setattr(stress_load, "_LATE_SECONDS", PATIENCE)
    monkeypatch.setattr(doctor, "_PROBE", WELL)
    share, last = home / "stress.json", StressReport([state_file(home)], {"ok": True})
    last.write("two streams")
    monkeypatch.setattr(psutil, "boot_time", lambda: 1e9)
    said = CliRunner().invoke(app, [*STRESS, "0.03", "--yes", "--json", "--share", str(share)])
    assert said.exit_code == 0, said.output
    report = json.loads(said.stdout)
    assert report == report_in(home) == json.loads(share.read_text())
    assert (report["kind"], report["ok"], report["phase"]) == (
        "omlx-server stress test",
        True,
        None,
    )
    assert report["test_before"].endswith("in phase two streams; the machine has rebooted since")
    assert report["settings"]["cache"]["hot_cache_max_bytes"] == PLAN.hot_bytes
    phases = {check["what"]: check["figures"] for check in report["checks"]}
    assert list(phases) == ["load", "two streams", "longest prompt", "four clients"]
    assert all(figures["survived"] for figures in phases.values())
    assert phases["two streams"]["evictions"] > 0 < phases["two streams"]["peak_bytes"]
    assert phases["longest prompt"]["longest_prompt"] == 4096 - 64
    assert 0 < phases["four clients"]["taken_bytes"] <= PLAN.most_taken
    for secret in (str(home), KEY, os.uname().nodename):
        assert secret not in share.read_text()
    assert not (home / ".cache" / "omlx_server" / "kv").exists()
    assert not last_test()


def test_a_server_that_dies_is_told_and_ctrl_c_ends_the_next_one(home: Path, model: Path) -> None:
    with running(home) as process:
        wait_for(in_phase(home, "two streams"))
        server_of(process).kill()
        wait_for(in_phase(home, "longest prompt"))
        died = report_in(home)["checks"][1]
        assert (died["level"], died["figures"]["exit_code"]) == ("fail", -signal.SIGKILL)
        assert died["says"].startswith("the server ended (SIGKILL)")
        assert not died["figures"]["survived"]
        server = server_of(process)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in said
    wait_for(ended(server))
    assert (report_in(home)["interrupted"], report_in(home)["phase"]) == (True, None)
    assert not list((home / "tmp").glob("omlx*"))


def test_a_doctor_that_dies_ends_its_server_and_leaves_its_phase(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PROBE", WELL)
    with running(home) as process:
        wait_for(in_phase(home, "two streams"))
        server = server_of(process)
        assert not last_test(), "it still runs"
        process.kill()
        process.wait()
        wait_for(ended(server))
    [told] = last_test()
    assert told["level"] == "warn"
    assert "in phase two streams; its process was killed" in told["says"]


def test_nothing_runs_without_a_yes(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = CliRunner().invoke(app, [*STRESS, "1"])
    assert refused.exit_code == 2
    assert refused.stderr.splitlines()[0] == "error: there is no terminal to ask on"
    monkeypatch.setattr(stdin, "is_terminal", lambda: True)
    declined = CliRunner().invoke(app, [*STRESS, "1"], input="n\n")
    assert declined.exit_code == 1
    assert declined.stdout.endswith("Nothing was run.\n")
    assert "may reboot a Mac with a faulty driver. Save your work. Go on?" in declined.stderr
    assert not report_in(home)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--stress", "1"],
        ["--stress", "1", "--model", "tiny", "--hosts", "hosts.json"],
        ["--stress", "0", "--model", "tiny"],
    ],
)
def test_what_makes_no_stress_test_is_told(arguments: list[str]) -> None:
    said = CliRunner().invoke(app, ["doctor", *arguments])
    assert said.exit_code == 2
    assert "--stress" in said.stderr
