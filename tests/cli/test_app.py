"""The surface of the command line: light, with exit codes and one-line errors."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from omlx_server import __version__
from omlx_server.cli.app import app
from omlx_server.errors import InternalError, ModelUnavailable, OmlxError
from tests.cli.paced_server import paced
from tests.cli.program import HEAVY, ROOT, break_commands, commands, imported_by, program
from tests.sweeps import sweep

runner = CliRunner()


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "serve --help",
        "chat --help",
        "config --help",
        "up --help",
        "bench --help",
        "status --help",
        "--version",
        "version",
    ],
)
def test_help_imports_nothing_that_takes_time(arguments: str) -> None:
    names = imported_by(*arguments.split())
    assert "typer" in names
    assert not names & HEAVY


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
    assert "msgspec" in names
    assert not names & HEAVY
    assert ("tomlkit" in names) == ("set" in arguments)


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda x: str(x)[:40])
def test_every_help_teaches_by_example(name: str, command: Any) -> None:
    assert command.get_short_help_str(80), f"{name} has no summary"
    assert "Example" in command.help
    examples = command.help.partition("Example")[2].splitlines()[1:]
    assert any(f"omlx-server {name}".strip() in line for line in examples), f"{name}: {examples}"


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda x: str(x)[:40])
def test_every_option_is_explained(name: str, command: Any) -> None:
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name}"
        assert parameter.help.endswith((".", "]", ")")), f"{name} {parameter.name}"


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda x: str(x)[:40])
def test_every_help_is_shown_within_its_width(name: str, command: Any) -> None:
    result = runner.invoke(app, [*name.split(), "--help"])
    assert result.exit_code == 0
    assert "Options:" in result.output
    assert "\b" not in result.output
    assert max(map(len, result.output.splitlines())) <= 100


@pytest.mark.parametrize(
    "group", [name for name, command in commands() if hasattr(command, "commands")]
)
def test_each_line_in_a_list_of_commands_is_whole_at_80_columns(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = runner.invoke(app, [*group.split(), "--help"]).output
    lists = text.partition("\nOptions:")[2].partition("\n\n")[2]
    assert "..." not in lists
    assert sum(line.startswith("  ") and line[2] != " " for line in lists.splitlines()) >= 5
    assert max(map(len, lists.splitlines())) <= 80


def test_the_exit_codes_are_told() -> None:
    text = runner.invoke(app, ["--help"]).output
    assert "Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly, 130 interrupted" in text


def test_the_root_lists_each_command_once_in_its_section() -> None:
    lines = runner.invoke(app, ["--help"]).output.splitlines()
    start = next(i for i, line in enumerate(lines) if line == "Start:")
    listed = [line.split()[0] for line in lines[start:] if line.startswith("  ")]
    listed = [word for word in listed if word in get_command(app).commands]  # type: ignore[attr-defined]
    visible = [name for name, command in commands() if name and " " not in name]
    assert sorted(listed) == sorted(visible)


def test_the_help_is_quick() -> None:
    """Printed, not judged: the machine may be busy. What costs time is judged above."""
    begun = time.perf_counter()
    program("--help")
    sys.stdout.write(f"\nomlx-server --help: {time.perf_counter() - begun:.3f} s\n")


def test_version_is_printed_both_ways() -> None:
    assert runner.invoke(app, ["--version"]).output == f"omlx-server {__version__}\n"
    lines = runner.invoke(app, ["version"]).output.splitlines()
    assert lines[0] == f"omlx-server {__version__}"
    assert [line.split()[0] for line in lines] == ["omlx-server", "python", "mlx", "mlx-lm"]


def test_an_unknown_command_or_option_is_a_usage_error() -> None:
    assert runner.invoke(app, ["sevre"]).exit_code == 2
    assert runner.invoke(app, ["serve", "--prot", "1"]).exit_code == 2


def test_a_usage_error_is_two_lines_and_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    break_commands(monkeypatch, ModelUnavailable("no model\nof that name", hint="try starter"))
    result = runner.invoke(app, ["serve", "x"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: no model of that name\nhint: try starter\n"


def test_another_error_of_ours_is_one_line_and_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    break_commands(monkeypatch, InternalError("it broke"))
    result = runner.invoke(app, ["serve"])
    assert (result.exit_code, result.stderr) == (1, "error: it broke\n")


def test_the_hint_of_any_error_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    break_commands(monkeypatch, OmlxError("it broke", hint="mend it"))
    result = runner.invoke(app, ["serve"])
    assert (result.exit_code, result.stderr) == (1, "error: it broke\nhint: mend it\n")


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
import platform, sys
from omlx_server.cli import app
def run(): raise ZeroDivisionError("oops")
platform.python_version = run
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
    assert "Start:" in done.stdout + done.stderr


# --- How it ends ---------------------------------------------------------------------------------


def shell(line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`omlx` in the line is the program."""
    function = f'omlx() {{ "{sys.executable}" -m omlx_server "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", function],
        cwd=ROOT,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("command", ["config schema", "--help", "config show", "version"])
def test_a_reader_that_goes_away_is_no_error(command: str) -> None:
    """`head` ends before or after everything is in the pipe; `true` reads nothing at all."""
    for reader in ("head -1", "true"):
        done = shell(f"omlx {command} | {reader}; exit ${{PIPESTATUS[0]}}")
        assert done.stderr == ""
        assert done.returncode in (0, 1)


LONG = """
import platform, sys
from omlx_server.cli import app
def run():
    print("line\\n" * 100_000, flush=True)
platform.python_version = run
sys.argv = ["omlx-server", "version"]
app.main()
"""


def test_a_pipe_that_breaks_in_the_middle_is_quiet() -> None:
    done = shell(f"'{sys.executable}' -c '{LONG}' | head -1; exit ${{PIPESTATUS[0]}}")
    first = f"omlx-server {__version__}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, first, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
@pytest.mark.parametrize("command", ["config show", "--help", "version"])
def test_a_full_disk_is_one_line(command: str) -> None:
    done = shell(f"omlx {command} > /dev/full")
    assert done.returncode == 1
    assert done.stderr.endswith(f"{os.strerror(errno.ENOSPC)}\n")
    assert len(done.stderr.splitlines()) == 1


def test_an_error_of_the_system_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    break_commands(monkeypatch, PermissionError(errno.EACCES, "Permission denied", "/some/file"))
    result = runner.invoke(app, ["serve"])
    assert (result.exit_code, result.stderr) == (1, "error: /some/file: Permission denied\n")
    break_commands(monkeypatch, OSError("odd"))
    assert runner.invoke(app, ["serve"]).stderr == "error: odd\n"


HOMELESS = (
    "version",
    "status",
    "config show",
    "config path",
    "config set server.port 9000",
    "cache stats",
    "cache clear --yes",
    "service logs",
    "launch codex --print",
    "chat --once hi",
    "bench",
    "pull starter",
    "up --once",
)


@pytest.mark.parametrize(("home", "command"), sweep(("file/home", "~nobody"), HOMELESS))
def test_a_home_that_can_not_be_used_is_no_bug_and_no_slip_of_the_pen(
    home: str, command: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    home = str(tmp_path / home) if home == "file/home" else home
    port = "9"
    done = subprocess.run(
        [sys.executable, "-m", "omlx_server", *command.split()],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": home, "OMLX_SERVER__PORT": port}
        | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (0, 1)
    assert all(
        line.startswith(("error: ", "hint: ", "no ", "note: ")) for line in done.stderr.splitlines()
    )
    assert "this is a bug" not in done.stderr


@pytest.mark.parametrize("command", ["chat --once hi --url {url}", "service logs -f"])
def test_ctrl_c_in_a_long_command_is_quiet(command: str, home: Path, tmp_path: Path) -> None:
    log = home / ".local" / "state" / "omlx_server" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("begun\n")
    with (
        paced(write=0.2) as server,
        subprocess.Popen(
            [sys.executable, "-m", "omlx_server", *command.format(url=server.url).split()],
            cwd=ROOT,
            env=os.environ | {"OMLX_LOGGING__FILE": str(log)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running,
    ):
        assert running.stdout
        try:
            assert running.stdout.read(2)
            running.send_signal(signal.SIGINT)
            _, err = running.communicate(timeout=30)
        finally:
            running.kill()
    assert (running.returncode, err) in ((130, ""), (0, ""))
