"""`omlx-server service`: the real commands, with a `systemctl` on the PATH that writes down."""

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omlx_server.cli.app import app
from tests.cli.service.conftest import show

runner = CliRunner()


def unit(home: Path) -> Path:
    return home / ".config" / "systemd" / "user" / "omlx-server.service"


def config(home: Path, text: str = "") -> Path:
    path = home / ".config" / "omlx_server" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_install_makes_what_is_missing_and_starts_it(home: Path, systemctl: Path) -> None:
    result = runner.invoke(app, ["service", "install"])
    assert result.exit_code == 0, result.output
    own = home / ".config" / "omlx_server" / "config.toml"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert f'"--config" "{own}"' in unit(home).read_text()
    assert (home / ".local" / "state" / "omlx_server").is_dir()
    assert systemctl.read_text().splitlines()[2:] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable omlx-server.service",
        "systemctl --user reset-failed omlx-server.service",
        "systemctl --user restart --no-block omlx-server.service",
    ]
    assert "loginctl enable-linger" in result.output


def test_installing_again_changes_nothing_but_what_has_changed(home: Path) -> None:
    config(home, "[server]\nport = 9\n")
    for _ in range(2):
        assert runner.invoke(app, ["service", "install"]).exit_code == 0
    before = unit(home).read_text()
    config(home, "[server]\nport = 9\nshutdown_grace_seconds = 100\n")
    runner.invoke(app, ["service", "install"])
    assert unit(home).read_text() == before.replace("TimeoutStopSec=45", "TimeoutStopSec=120")
    assert "port = 9" in (home / ".config/omlx_server/config.toml").read_text()


def test_a_wrong_config_is_refused_before_anything_is_done(home: Path, systemctl: Path) -> None:
    config(home, "[server]\nprot = 9\n")
    result = runner.invoke(app, ["service", "install"])
    assert result.exit_code == 2
    assert "unknown key server.prot" in result.stderr
    assert result.stderr.count("\n") == 2
    assert not unit(home).exists()
    assert not systemctl.exists()


def test_the_config_is_checked_as_the_service_will_see_it(home: Path) -> None:
    """A key in the environment of this shell opens no port in the service."""
    path = config(home, '[server]\nhost = "0.0.0.0"\n')
    environ = {"OMLX_AUTH__API_KEYS": "sk-secret"}
    result = runner.invoke(app, ["service", "install"], env=environ)
    assert result.exit_code == 2
    assert "auth.api_keys is empty" in result.stderr
    config(home)
    result = runner.invoke(app, ["service", "install"], env=environ)
    assert f"will not see OMLX_AUTH__API_KEYS; write it to {path}" in result.stderr
    assert "sk-secret" not in unit(home).read_text() + result.output


def test_paths_and_addresses_of_the_shell_go_along_and_no_secret(home: Path) -> None:
    """A dry run shows all of it."""
    environ = {
        "HF_HOME": str(home / "hub"),
        "https_proxy": "http://proxy.lan:3128",
        "HTTP_PROXY": "http://ann:sk-secret@proxy.lan:3128",
        "HF_TOKEN": "hf_sk-secret",
    }
    dry = runner.invoke(app, ["service", "install", "--dry-run"], env=environ)
    line = f'Environment="HF_HOME={home}/hub" "https_proxy=http://proxy.lan:3128"\n'
    assert line in dry.stdout and not unit(home).exists()
    result = runner.invoke(app, ["service", "install"], env=environ)
    assert line in unit(home).read_text()
    assert (home / "hub").is_dir() and f'"-{home}/hub"' in unit(home).read_text()
    for said in (dry.stderr, result.stderr):
        assert "note: the service will not see HTTP_PROXY: there is a password in it" in said
        assert "not see HF_TOKEN, as its file must hold no token: `hf auth login`" in said
        assert f"keeps it in {home}/hub/token, where the service finds it" in said
    assert "sk-secret" not in unit(home).read_text() + dry.output + result.output


def test_a_config_of_ones_own(home: Path) -> None:
    mine = home / "my config.toml"
    mine.write_text("[logging]\nfile = '~/my.log'\n")
    result = runner.invoke(app, ["service", "install", "--config", "my config.toml"])
    assert result.exit_code == 0, result.output
    assert f'"--config" "{mine}" "--degraded-on-error"\n' in unit(home).read_text()


@pytest.mark.parametrize("verb", ["install", "uninstall", "start", "stop", "reload"])
def test_a_dry_run_does_nothing(verb: str, home: Path, systemctl: Path) -> None:
    if verb != "install":
        unit(home).parent.mkdir(parents=True)
        unit(home).write_text("mine")
    before = sorted(home.rglob("*"))
    result = runner.invoke(app, ["service", verb, "--dry-run"])
    assert result.exit_code == 0
    assert "- run systemctl --user" in result.output
    assert sorted(home.rglob("*")) == before
    assert not systemctl.exists()


def test_uninstall_stops_first_and_leaves_the_rest(home: Path, systemctl: Path) -> None:
    runner.invoke(app, ["service", "install"])
    systemctl.unlink()
    result = runner.invoke(app, ["service", "uninstall"])
    assert result.exit_code == 0
    assert not unit(home).exists()
    _asked, said, *_ = systemctl.read_text().splitlines()
    assert said == "systemctl --user disable --now omlx-server.service"
    assert (home / ".config" / "omlx_server" / "config.toml").exists()
    again = runner.invoke(app, ["service", "uninstall"])
    assert (again.exit_code, again.output) == (0, "No service is installed.\n")


@pytest.mark.parametrize("verb", ["start", "stop", "reload"])
def test_nothing_is_started_or_stopped_that_is_not_installed(verb: str, systemctl: Path) -> None:
    result = runner.invoke(app, ["service", verb])
    assert result.exit_code == 2
    assert "hint: omlx-server service install" in result.stderr
    assert not systemctl.exists()


def shown(active: str, pid: int = 0, status: int = 0) -> str:
    return (
        f"LoadState=loaded\nActiveState={active}\nMainPID={pid}\nExecMainStatus={status}\n"
        "StatusText=serves x\n"
    )


WHY = "why: omlx-server service logs; crashes: journalctl --user -u omlx-server.service\n"
TO_HAVE_ONE = "to have one: omlx-server service install\n"


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (shown("active", 12), 0, "running, process 12 (systemd)\nserves x\n"),
        (shown("activating", 12), 1, "starting, process 12 (systemd)\n"),
        (shown("deactivating", 12), 1, "stopping, process 12 (systemd)\n"),
        (shown("inactive"), 1, "stopped, last exit code 0 (systemd)\n"),
        (shown("failed", status=1), 1, f"failed, last exit code 1 (systemd)\n{WHY}"),
        ("LoadState=not-found\n", 1, f"not installed (systemd)\n{TO_HAVE_ONE}"),
    ],
)
def test_status_in_words_and_as_exit_code(answer: str, code: int, words: str, home: Path) -> None:
    show(home, answer)
    result = runner.invoke(app, ["service", "status"])
    assert (result.exit_code, result.output) == (code, words)


def test_status_as_json(home: Path) -> None:
    result = runner.invoke(app, ["service", "status", "--json"])
    assert json.loads(result.output) == {
        "manager": "systemd",
        "state": "running",
        "pid": 12,
        "last_exit": None,
        "starts_at": "login",
        "user": None,
        "says": "serves x",
        "file": str(unit(home)),
        "log": str(home / ".local/state/omlx_server/server.log"),
    }


def test_what_the_terminal_can_not_write_is_escaped(home: Path) -> None:
    show(home, shown("active", 12).replace("serves x", "serves caf\u00e9"))
    for more, words in (([], "serves caf\\xe9"), (["--json"], "serves caf\\u00e9")):
        said = CliRunner(charset="ascii").invoke(app, ["service", "status", *more])
        assert said.exit_code == 0, said.output
        assert words in said.stdout


def test_what_fails_half_way_leaves_nothing(
    home: Path, systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSTEMCTL_FAILS", "restart")
    result = runner.invoke(app, ["service", "install"])
    assert result.exit_code == 1
    assert result.stderr == (
        "error: `systemctl --user restart --no-block omlx-server.service` failed with code 4: "
        "it said nothing\n"
    )
    assert not unit(home).exists()
    assert not (home / ".config" / "omlx_server" / "config.toml").exists()
    assert "systemctl --user disable --now omlx-server.service" in systemctl.read_text()


def test_what_was_there_before_a_failure_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = config(home, "[server]\nport = 9\n")
    unit(home).parent.mkdir(parents=True)
    unit(home).write_text("mine")
    monkeypatch.setenv("SYSTEMCTL_FAILS", "enable")
    result = runner.invoke(app, ["service", "install"])
    assert result.exit_code == 1
    assert f"note: {unit(home)} is written anew and stays\n" in result.stderr
    assert "ExecStart" in unit(home).read_text() and own.exists()


@pytest.mark.parametrize("programs", ["here", "nowhere"])
def test_where_no_manager_answers_nothing_is_left(
    programs: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a failed install, nor of a service that is there."""
    monkeypatch.setenv("SYSTEMCTL_FAILS", "--user")
    if programs == "nowhere":
        monkeypatch.setenv("PATH", str(home))
    before = sorted(home.rglob("*"))
    assert runner.invoke(app, ["service", "install"]).exit_code in (1, 2)
    assert [path for path in sorted(home.rglob("*")) if path.name != "said"] == before
    unit(home).parent.mkdir(parents=True)
    unit(home).write_text("mine")
    result = runner.invoke(app, ["service", "uninstall"])
    assert (result.exit_code, result.output) == (
        0,
        f"{unit(home)} is removed. No systemd answers here, so nothing was stopped.\n",
    )
    assert not unit(home).exists()


def test_without_a_manager_it_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    for arguments in (["status"], ["install"]):
        result = runner.invoke(app, ["service", *arguments])
        assert result.exit_code == 2
        assert "was not found: there is no service manager" in result.stderr
        assert result.stderr.count("\n") == 2


def test_logs_are_the_end_of_the_file(home: Path) -> None:
    assert runner.invoke(app, ["service", "logs"]).exit_code == 2
    log = home / ".local" / "state" / "omlx_server" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert runner.invoke(app, ["service", "logs", "-n", "2"]).output == "line 98\nline 99\n"
    assert len(runner.invoke(app, ["service", "logs"]).output.splitlines()) == 50


def test_logs_can_be_read_on_any_terminal(home: Path) -> None:
    log = home / ".local" / "state" / "omlx_server" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("Zürich → 東京\n", encoding="utf-8")
    result = CliRunner(charset="ascii").invoke(app, ["service", "logs"])
    assert (result.exit_code, result.output) == (0, "Z\\xfcrich \\u2192 \\u6771\\u4eac\n")


def test_logs_of_a_config_that_is_wrong_can_be_read(home: Path) -> None:
    config(home, f'[server]\nprot = 1\n[logging]\nfile = "{home}/mine.log"\n')
    (home / "mine.log").write_text("degraded\n")
    result = runner.invoke(app, ["service", "logs"])
    assert (result.exit_code, result.output) == (0, "degraded\n")


@pytest.mark.parametrize(
    "verb", ["", "install", "uninstall", "start", "stop", "reload", "status", "logs"]
)
def test_every_help_teaches_by_example(verb: str) -> None:
    result = runner.invoke(app, ["service", *verb.split(), "--help"])
    assert result.exit_code == 0
    assert ("Example" if verb else "install") in result.output
