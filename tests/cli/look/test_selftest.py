"""`omlx-server doctor --model NAME`, the real program."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from tests.doctor.selftest.subjects import save_model
from tests.sweeps import wide

ROOT = Path(__file__).parents[3]
SETS = ("--set", "cache.block_tokens=16", "--set", "scheduler.prefill_chunk_tokens=64")


def command(home: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    line = [sys.executable, "-m", "omlx_server", "doctor", *arguments, *SETS]
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home / "tmp")}
    return line, environ


@pytest.fixture
def model(home: Path) -> Path:
    (home / "tmp").mkdir()
    return save_model(home / ".cache" / "omlx_server" / "models" / "org" / "tiny")


def test_a_model_is_tested_and_the_report_can_be_shared(home: Path, model: Path) -> None:
    line, environ = command(home, "--model", "tiny", "--quick", "--share", str(home / "r.json"))
    done = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [text for text in done.stdout.splitlines() if "fix:" not in text]
    assert [text[:4].strip() in ("ok", "warn") for text in lines] == [True] * 10
    assert all(len(text) < 200 for text in lines)
    assert "hit: files" in done.stderr
    assert "r.json: it names the model, but has no texts of prompts, no paths, and" in done.stderr
    text = (home / "r.json").read_text()
    report = json.loads(text)
    assert report["ok"] is True
    assert report["model"]["name"] == "org/tiny"
    assert [check["what"] for check in report["checks"]][-1] == "8 streams"
    for secret in (str(home), str(ROOT), os.uname().nodename, "lantern"):
        assert secret not in text
    assert not list((home / "tmp").glob("omlx*"))
    assert not (home / ".cache" / "omlx_server" / "kv").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), *wide([(signal.SIGTERM, 143)])])
def test_a_signal_ends_it_and_leaves_nothing(
    number: int, code: int, home: Path, model: Path
) -> None:
    line, environ = command(home, "--model", "tiny")
    with subprocess.Popen(
        line, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "hit: " not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.1)
        process.send_signal(number)
        out, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in said
    assert not list((home / "tmp").glob("omlx*"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--quick"], "--quick, --stress and --share are for the self-test"),
        (["--model", "tiny", "--share", "/no/such/place/r.json"], "can't be written"),
        (["--model", "org/later"], "org/later is not here yet"),
        (["--model", "tiny", "--set", "server.prot=1"], "server.prot"),
    ],
)
def test_what_can_not_be_done_is_told_in_one_line(arguments: list[str], words: str) -> None:
    said = CliRunner().invoke(app, ["doctor", *arguments])
    assert said.exit_code == 2, said.output
    errors = said.stderr.splitlines()
    assert errors[0].startswith("error: ")
    assert words in errors[0]
    assert all(line.startswith("hint: ") for line in errors[1:])


def test_json_on_stdout_is_the_report(home: Path, model: Path) -> None:
    words = ["doctor", "--model", str(model), "--quick", "--json", *SETS]
    said = CliRunner().invoke(app, words)
    assert json.loads(said.stdout)["kind"] == "omlx-server self-test", said.stderr
