"""`omlx-server doctor`, the real program: on this machine, and where something is broken."""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from omlx_server.cli.look import doctor
from tests.cli.home import CONFIG
from tests.doctor.well import WELL
from tests.models.directories import make, no_tensors

runner = CliRunner()


@pytest.fixture(autouse=True)
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading MLX takes a second; one test does."""
    monkeypatch.setattr(doctor, "_PROBE", WELL)


def doctor_says(*arguments: str) -> tuple[int, dict[str, Any]]:
    """By what was looked at; the worst of several."""
    result = runner.invoke(app, ["doctor", "--json", "--set", "server.port=0", *arguments])
    document = json.loads(result.stdout)
    rows: dict[str, Any] = {}
    for row in document["findings"]:
        worse = row["level"] != "ok" or row["what"] not in rows
        rows[row["what"]] = row if worse else rows[row["what"]]
    assert document["ok"] == (result.exit_code == 0)
    return result.exit_code, rows


def test_on_this_machine_nothing_fails(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omlx_server", "doctor", "--set", "server.port=0"],
        cwd=Path(__file__).parents[3],
        env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    words = [line.split()[1] for line in done.stdout.splitlines() if "fix:" not in line]
    assert words == [
        "config", "python", "mlx", "model", "blas", "memory", "wired",
        "models", "disk", "cache", "port", "service", "clients",
    ]  # fmt: skip


def test_what_the_terminal_can_not_write_is_escaped() -> None:
    arguments = ["doctor", "--set", "server.port=0", "--set", "models.default=caf\u00e9"]
    for more, words in (([], "caf\\xe9"), (["--json"], "caf\\u00e9")):
        said = CliRunner(charset="ascii").invoke(app, [*arguments, *more])
        assert said.exit_code in (0, 1), said.output
        assert words in said.stdout


def test_a_config_that_is_wrong_fails_and_the_rest_is_still_looked_at(home: Path) -> None:
    (home / CONFIG).write_text("[server]\nprot = 1\n")
    code, rows = doctor_says()
    assert code == 1
    assert rows["config"]["level"] == "fail"
    assert "server.port" in rows["config"]["fix"]
    assert rows["python"]["level"] == "ok"


def test_a_config_that_others_may_read(home: Path) -> None:
    (home / CONFIG).touch(0o644)
    assert doctor_says()[1]["config"]["fix"] == f"chmod 600 {home / CONFIG}"


def test_mlx_that_crashes_fails_and_nothing_else_goes_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setattr(doctor, "_PROBE", [sys.executable, "-c", crash])
    code, rows = doctor_says()
    assert code == 1
    assert "signal 4" in rows["mlx"]["says"]
    assert "memory" not in rows
    assert "clients" in rows


def test_a_model_that_is_broken_or_too_large(home: Path) -> None:
    model = home / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    code, rows = doctor_says("--set", f"models.default={model}")
    assert (code, rows["model"]["level"]) == (1, "fail")
    (model / "model.safetensors").write_bytes(no_tensors(2000))
    code, rows = doctor_says("--set", f"models.default={model}", "--set", "memory.limit=1000B")
    assert (code, rows["weights"]["level"]) == (1, "fail")
    assert doctor_says("--set", f"models.default={model}")[0] == 0
    code, rows = doctor_says("--set", "models.default=/no/such/model")
    assert (code, rows["model"]["level"]) == (1, "fail")


def test_a_model_that_is_damaged(home: Path) -> None:
    model = make(home / "models" / "bad", weights=2000)
    sets = ("--set", f"models.dirs={home}/models", "--set", "models.default=bad")
    _, rows = doctor_says(*sets)
    assert "tokenizer.json can't be used" in rows["model"]["says"]
    (model / "tokenizer.json").write_text('{"model": {}}')
    assert doctor_says(*sets)[0] == 0
    (model / "model.safetensors").write_bytes(no_tensors(2000)[:1000])
    code, rows = doctor_says(*sets)
    assert (code, rows["model"]["level"]) == (1, "fail")
    assert "model.safetensors is cut" in rows["model"]["says"]
    assert "weights" not in rows


def test_a_name_that_leads_nowhere_is_not_said_to_come(home: Path) -> None:
    code, rows = doctor_says("--set", "models.default=startr")
    assert (code, rows["model"]["level"]) == (1, "fail")
    assert rows["model"]["fix"] == "Did you mean starter?"
    assert doctor_says("--set", "models.default=org/later")[1]["model"]["level"] == "ok"


def test_names_in_the_config_that_no_model_has(home: Path) -> None:
    make(home / "models" / "org" / "here")
    (home / CONFIG).write_text(
        f'[models]\ndirs = ["{home}/models"]\ndefault = "org/later"\n'
        'aliases = { a = "here", s = "starter", x = "nope" }\n[models.overrides.later]\nttl = 3\n'
    )
    (home / CONFIG).chmod(0o600)
    code, rows = doctor_says()
    assert (code, rows["config"]["level"]) == (0, "warn")
    assert rows["config"]["says"] == "models.aliases: x stands for nope, which is not here"


def test_what_serve_would_refuse_fails(home: Path) -> None:
    (home / CONFIG).write_text('[models.overrides.starter]\ntool_parser = "nope"\n')
    code, rows = doctor_says()
    assert (code, rows["config"]["level"]) == (1, "fail")
    assert 'tool_parser of "starter" can\'t be nope' in rows["config"]["says"]


class Taken(BaseHTTPRequestHandler):
    body = b"{}"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("body", "level"),
    [
        (b'{"server": "omlx_server", "version": "9"}', "ok"),
        (b"<html>", "fail"),
        (b'{"server": "x"}', "fail"),
    ],
)
def test_the_port_of_our_own_server_and_of_a_stranger(body: bytes, level: str) -> None:
    handler = type("Handler", (Taken,), {"body": body})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        code, rows = doctor_says("--set", f"server.port={server.server_port}")
        server.shutdown()
        thread.join()
    assert (rows["port"]["level"], code) == (level, 1 if level == "fail" else 0)
