"""`omlx-server service --system`: the real commands, with a `systemctl` that writes down."""

import json
import os
import pwd
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omlx_server.cli.app import app
from omlx_server.cli.look import doctor
from omlx_server.cli.service import system
from omlx_server.service import managers
from tests.cli.service.conftest import show

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")
UNIT = "root/omlx-server.service"
ANN = 64_321


def run(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(app, ["service", *words], env=environ)


def steps_in(result: Result) -> list[str]:
    return [line for line in result.stdout.splitlines() if line.startswith("- ")]


@pytest.fixture
def ann(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of a user on this machine, which they may enter; pytest's directories only root."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    home = place / "ann"
    home.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(home, ANN, ANN)
    real = pwd.getpwnam

    def getpwnam(name: str) -> pwd.struct_passwd:
        given = ("ann", "*", ANN, ANN, "", str(home), "/bin/sh")
        return pwd.struct_passwd(given) if name == "ann" else real(name)

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    monkeypatch.setattr(system, "program_files", lambda: ())  # those of the tests are root's
    monkeypatch.delenv("SUDO_USER", raising=False)
    yield home
    shutil.rmtree(place)


def login_service(home: Path) -> Path:
    file = home / ".config" / "systemd" / "user" / "omlx-server.service"
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    return file


@needs_root
def test_it_serves_as_a_named_user_with_their_files(ann: Path, home: Path, systemctl: Path) -> None:
    result = run("install", "--system", "--user", "ann")
    assert result.exit_code == 0, result.output
    config = ann / ".config" / "omlx_server" / "config.toml"
    own = (config, ann / ".cache/omlx_server/models", ann / ".local/state/omlx_server")
    for path in own:
        assert path.stat().st_uid == ANN
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path == config else 0o700)
    assert not any((home / ".config" / "omlx_server").iterdir()), "nothing is in root's home"
    unit = home / UNIT
    assert stat.S_IMODE(unit.stat().st_mode) == 0o644 and unit.stat().st_uid == 0
    text = unit.read_text()
    assert "User=ann\n" in text and f'"--config" "{config}"' in text
    assert f"logging.file={ann}/.local/state/omlx_server/server.log" in text
    assert systemctl.read_text().splitlines()[1:] == [
        "systemctl daemon-reload",
        "systemctl enable omlx-server.service",
        "systemctl reset-failed omlx-server.service",
        "systemctl restart --no-block omlx-server.service",
    ]
    assert "at every boot" in result.output


@needs_root
def test_installing_again_keeps_user_and_config(ann: Path, home: Path) -> None:
    run("install", "--system", "--user", "ann")
    config = ann / ".config" / "omlx_server" / "config.toml"
    config.write_text("[server]\nshutdown_grace_seconds = 100\n")
    before = (home / UNIT).read_text()
    assert run("install", "--system").exit_code == 0
    after = before.replace("TimeoutStopSec=45", "TimeoutStopSec=120")
    assert (home / UNIT).read_text() == after
    assert config.stat().st_uid == ANN


@needs_root
def test_the_network_needs_keys_and_directories_can_be_read(
    ann: Path, home: Path, systemctl: Path
) -> None:
    config = home / "c.toml"
    words = ("install", "--system", "--user", "ann", "--config", str(config))
    config.write_text('[server]\nhost = "0.0.0.0"\n')
    assert "auth.api_keys is empty" in run(*words).stderr
    config.write_text('[server]\nhost = "0.0.0.0"\n[auth]\napi_keys = ["sk-secret"]\n')
    refused = run(*words)
    assert f"error: ann can't read {config}: Permission denied\n" in refused.stderr
    mine = ann / "omlx.toml"
    for directory, is_readable in ((home, False), (ann, True)):
        text = config.read_text() + f'[models]\ndirs = ["{directory}/models"]\n'
        (home / "models").mkdir(mode=0o700, exist_ok=True)
        mine.write_text(text)
        mine.chmod(0o644)
        result = run(*words[:-1], str(mine))
        assert (result.exit_code == 0) is is_readable, result.output
        assert (home / UNIT).exists() is is_readable
        assert "sk-secret" not in result.output
    assert "sk-secret" not in (home / UNIT).read_text()


@needs_root
@pytest.mark.parametrize(("user", "sudo_user"), [("ann", ""), ("ann", "ann"), ("", "ann")])
def test_it_takes_over_from_the_login_service(
    user: str, sudo_user: str, ann: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = login_service(ann)
    for path in (ann / ".config", *(ann / ".config").rglob("*")):
        os.chown(path, ANN, ANN)
    if sudo_user:
        monkeypatch.setenv("SUDO_USER", sudo_user)
    named = ("--user", user) if user else ()
    result = run("install", "--system", *named, "--dry-run")
    assert result.exit_code == 0, result.output
    steps = steps_in(result)
    stop = "- run systemctl --user --machine=ann@.host disable --now omlx-server.service"
    last = "- run systemctl restart --no-block omlx-server.service"
    assert steps.index(stop) < steps.index(f"- remove {file} as ann") < steps.index(last)
    assert f"note: it replaces the login service of ann, {file}\n" in result.stderr
    assert ("`--user ann` serves them" in result.stderr) is (not user)
    if user:
        done = run("install", "--system", *named)
        assert done.exit_code == 0, done.output
        assert not file.exists()


@needs_root
def test_a_link_in_a_home_leads_root_to_no_other_file(ann: Path, home: Path) -> None:
    other = home / "of-root" / "omlx-server.service"
    other.parent.mkdir()
    other.write_text("of root")
    link = ann / ".config" / "systemd" / "user"
    link.parent.mkdir(parents=True)
    link.symlink_to(other.parent)
    for path in (ann / ".config", link.parent):
        os.chown(path, ANN, ANN)
    result = run("install", "--system", "--user", "ann")
    assert result.exit_code == 1 and "Permission denied" in result.stderr
    assert other.read_text() == "of root"


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_dry_run_prints_every_step_and_needs_no_root(
    platform: str, ann: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_boot = partial(managers.system_manager, platform=platform)
    monkeypatch.setattr(system, "system_manager", at_boot)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = run("install", "--system", "--dry-run")
    assert result.exit_code == 0, result.output
    name, place = {"linux": ("omlx", "/var/lib"), "darwin": ("_omlx", "/var/db")}[platform]
    own = f"{place}/omlx_server"
    making = re.sub(r"\b\d{3}\b", "ID", "\n".join(steps_in(result))).splitlines()
    made_by = ("useradd", "dscl")[platform == "darwin"]
    assert making[0].startswith(f"- run {made_by}")
    home_made = making.index(f"- run install -d -m 0700 -o {name} -g {name} {own}")
    assert making[home_made + 1].startswith(f"- check that {name} can read {own}/.config")
    assert making[home_made + 2].startswith(f"- write {own}/.config/omlx_server/config.toml as")
    assert f"- make the directory {own}/.cache/omlx_server/models as {name}" in making
    assert not (home / "root").exists() and not Path(own).exists()


@pytest.mark.parametrize("verb", ["install", "uninstall", "start", "stop", "reload"])
def test_only_root_changes_it(
    verb: str, home: Path, systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    installed(home)
    result = run(verb, "--system")
    assert result.exit_code == 2 and not systemctl.exists()
    assert result.stderr == (
        "error: only root may change the service that starts at boot\n"
        'hint: the same after sudo: sudo "$(command -v omlx-server)" service COMMAND --system\n'
    )


def installed(home: Path, user: str = "daemon") -> Path:
    file = home / UNIT
    file.parent.mkdir(parents=True)
    file.write_text(f"[Service]\nUser={user}\n")
    return file


@needs_root
@pytest.mark.parametrize("verb", ["start", "stop", "reload"])
def test_verbs_without_a_flag_reach_the_one_that_is_there(
    verb: str, home: Path, systemctl: Path
) -> None:
    """And with both, the flag chooses."""
    installed(home)
    for more in ((), ("--system",)):
        assert run(verb, *more).exit_code == 0
        assert f"systemctl {verb}" in systemctl.read_text()
        assert "--user" not in systemctl.read_text()
        systemctl.unlink()
    login_service(home)
    assert run(verb).exit_code == 0
    assert f"systemctl --user {verb}" in systemctl.read_text()


def test_what_is_not_installed_is_not_started(home: Path) -> None:
    result = run("start", "--system")
    assert result.exit_code == 2 and "service install --system" in result.stderr
    show(home, "LoadState=not-found\n")
    assert "to have one: omlx-server service install --system" in run("status", "--system").stdout


def test_status_and_doctor_tell_which_kind_it_is(home: Path) -> None:
    file = installed(home)
    result = run("status")
    assert result.stdout.startswith("running, process 12 (systemd, at boot, as daemon)\n")
    rows = json.loads(run("status", "--json").stdout)
    assert (rows["starts_at"], rows["user"], rows["file"]) == ("boot", "daemon", str(file))
    assert doctor._check_service().says == "running, at boot, as daemon"
    file.unlink()
    assert doctor._check_service().says == "running"


@needs_root
def test_logs_are_those_of_its_user(ann: Path, home: Path) -> None:
    installed(home, "ann")
    log = ann / ".local" / "state" / "omlx_server" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("of ann\n")
    assert run("logs").stdout == "of ann\n"
    other = ann / ".config" / "omlx_server" / "config.toml"
    other.parent.mkdir(parents=True)
    other.write_text(f'[logging]\nfile = "{ann}/other.log"\n')
    (ann / "other.log").write_text("of the config\n")
    assert run("logs").stdout == "of the config\n"


def test_a_login_service_beside_it_is_refused(home: Path, systemctl: Path) -> None:
    installed(home)
    result = run("install")
    assert result.exit_code == 2 and not systemctl.exists()
    assert "a service that starts at boot is installed" in result.stderr
    refused = run("install", "--user", "ann")
    assert "hint: add --system" in refused.stderr


@needs_root
def test_removal_leaves_no_trace(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own account, home and all; of a named user nothing but the service."""
    place = home / "omlx_server"
    entry = pwd.struct_passwd(("omlx", "*", 990, 990, "", str(place), "/bin/false"))
    named = pwd.getpwnam
    monkeypatch.setattr(pwd, "getpwnam", lambda name: entry if name == "omlx" else named(name))
    monkeypatch.setattr("omlx_server.service.account._PLACES", {"linux": ("omlx", place)})
    file = installed(home, "omlx")
    dry = run("uninstall", "--purge", "--dry-run")
    assert steps_in(dry) == [
        "- run systemctl disable --now omlx-server.service",
        f"- remove {file}",
        "- run systemctl daemon-reload",
        "- run systemctl reset-failed omlx-server.service",
        "- run userdel omlx",
        f"- run rm -rf {place}",
    ]
    kept = run("uninstall")
    assert (kept.exit_code, file.exists()) == (0, False)
    assert f"omlx and {place} stay; with --purge they go as well" in kept.stdout
    later = run("uninstall", "--system", "--purge", "--dry-run")
    assert steps_in(later) == ["- run userdel omlx", f"- run rm -rf {place}"]
    file.write_text("[Service]\nUser=daemon\n")
    refused = run("uninstall", "--purge")
    assert "belong to daemon, so they stay" in refused.stderr and file.exists()
    file.unlink()
    assert "belong to you" in run("uninstall", "--purge").stderr
