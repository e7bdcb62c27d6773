"""The surface of the command line: light, with exit codes and one-line errors."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omlx_server import __version__
from omlx_server.cli import lazy
from omlx_server.cli.app import app
from omlx_server.errors import InternalError, ModelUnavailable

ROOT = Path(__file__).parents[2]
HEAVY = {"mlx", "mlx_lm", "transformers", "fastapi", "uvicorn", "numpy", "httpx", "rich"}
runner = CliRunner()


def program(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omlx_server", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"} | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


LIST_IMPORTS = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("\\n" + " ".join({m.split(".")[0] for m in sys.modules})))
sys.argv = ["omlx-server", *sys.argv[1:]]
from omlx_server.__main__ import main
main()
"""


def imported_by(*arguments: str, code: int = 0) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LIST_IMPORTS, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "serve --help",
        "chat --help",
        "config --help",
        "status --help",
        "--version",
        "version",
    ],
)
def test_help_imports_nothing_that_takes_time(arguments: str) -> None:
    names = imported_by(*arguments.split())
    assert "typer" in names
    assert not names & HEAVY
    if arguments in ("--help", "--version"):
        # typer itself reads the arguments of a command with pydantic.
        assert "pydantic" not in names


QUICK = (
    "config show --origin",
    "config get server.port",
    "config set server.port 1 --config {home}/omlx.toml",
    "config validate",
    "config schema",
    "status --url {url}",
    "launch codex --print --url {url}",
)


@pytest.mark.parametrize("command", QUICK)
def test_quick_commands_import_the_settings_and_nothing_heavier(
    command: str, home: Path, server_url: str
) -> None:
    arguments = command.format(home=home, url=server_url).split()
    names = imported_by(*arguments, code=1 if "status" in command else 0)
    assert "pydantic" in names
    assert not names & HEAVY
    assert ("tomlkit" in names) == ("set" in arguments)


@pytest.mark.parametrize(
    "command",
    ["", "serve", "chat", "status", "launch", "doctor"]
    + [f"config {name}" for name in ["show", "path", "get", "set", "edit", "validate", "schema"]],
)
def test_every_help_teaches_by_example(command: str) -> None:
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output


def test_version_is_printed_both_ways() -> None:
    assert runner.invoke(app, ["--version"]).output == f"omlx-server {__version__}\n"
    lines = runner.invoke(app, ["version"]).output.splitlines()
    assert lines[0] == f"omlx-server {__version__}"
    assert [line.split()[0] for line in lines] == ["omlx-server", "python", "mlx", "mlx-lm"]


def test_an_unknown_command_or_option_is_a_usage_error() -> None:
    assert runner.invoke(app, ["sevre"]).exit_code == 2
    assert runner.invoke(app, ["serve", "--prot", "1"]).exit_code == 2


class Broken:
    """Stands in for a command's module."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def run(self, **_: object) -> int:
        raise self.error


def break_commands(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    monkeypatch.setattr(lazy, "load", lambda module: Broken(error))


def test_a_usage_error_is_two_lines_and_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    break_commands(monkeypatch, ModelUnavailable("no model\nof that name", hint="try starter"))
    result = runner.invoke(app, ["serve", "x"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: no model of that name\nhint: try starter\n"


def test_another_error_of_ours_is_one_line_and_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    break_commands(monkeypatch, InternalError("it broke"))
    result = runner.invoke(app, ["serve"])
    assert (result.exit_code, result.stderr) == (1, "error: it broke\n")


def test_the_traceback_is_shown_when_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    break_commands(monkeypatch, InternalError("it broke"))
    monkeypatch.setenv("OMLX_DEBUG", "1")
    result = runner.invoke(app, ["serve"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: it broke\n")


def test_an_interrupt_is_quiet_and_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    break_commands(monkeypatch, KeyboardInterrupt())
    result = runner.invoke(app, ["serve"])
    assert (result.exit_code, result.output) == (130, "")


BUG = """
import sys
from omlx_server.cli import app, lazy
def load(module): raise ZeroDivisionError("oops")
lazy.load = load
sys.argv = ["omlx-server", "version"]
app.main()
"""


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_bug_shows_a_traceback_only_when_debugging(debug: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUG],
        cwd=ROOT,
        env={"OMLX_DEBUG": debug},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) == (debug == "1")
    assert ("error: unexpected ZeroDivisionError: oops" in done.stderr) == (debug == "0")


def test_the_real_program_refuses_a_bad_setting_in_two_lines() -> None:
    done = program("config", "show", OMLX_SERVER__PORT="many")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: server.port: expected an integer from 0 to 65535, "
        'not "many" (env OMLX_SERVER__PORT)\n'
    )


def test_without_a_command_it_prints_its_help() -> None:
    done = program()
    assert "Commands:" in done.stdout + done.stderr
