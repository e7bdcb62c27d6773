"""What the verbs do, in which order, and how the runner takes it. No manager is touched."""

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx_server.errors import OmlxError, UsageError
from omlx_server.service import launchd, systemd
from omlx_server.service.launchd import Launchd
from omlx_server.service.managers import Manager, login_manager, manager_here, system_manager
from omlx_server.service.state import RunState, ServiceState
from omlx_server.service.steps import (
    CheckReadable,
    MakeDirectory,
    Outcome,
    Remove,
    RunCommand,
    WaitUntilGone,
    WriteFile,
    run_program,
    take,
)
from omlx_server.service.systemd import Systemd
from omlx_server.settings.edit import write_config
from tests.service.made import ANN, ROLE, Recorder, loaded, made

AGENT = "gui/501/org.omlx.server"
PRINT = ("launchctl", "print")
GONE = Outcome(113, err='Could not find service "org.omlx.server" in domain for user gui: 501')


def verbs(commands: list[str]) -> list[str]:
    """`launchctl` and `systemctl --user` left out."""
    return [
        command.removeprefix("launchctl ").removeprefix("systemctl --user ") for command in commands
    ]


# --- launchd -------------------------------------------------------------------------------------


def test_an_agent_is_out_before_it_is_loaded_again(tmp_path: Path) -> None:
    """bootstrap fails while the process of before is ending: it is waited for."""
    still = Outcome(0, "state = running")
    run = Recorder({PRINT: [still, still, GONE]})
    service = made(loaded(tmp_path / "c.toml"), home=tmp_path)
    take(Launchd(tmp_path, 501).install(service, run), run, run.pause)
    plist = Launchd(tmp_path, 501).file
    assert verbs(run.commands) == [
        f"bootout {AGENT}",
        *[f"print {AGENT}"] * 3,
        f"enable {AGENT}",
        f"bootstrap gui/501 {plist}",
    ]
    assert run.pauses == 2
    assert plist.read_text(encoding="utf-8") == launchd.text_of(service)


def test_an_agent_that_is_not_loaded_can_be_booted_out(tmp_path: Path) -> None:
    run = Recorder({("launchctl", "bootout"): [Outcome(3, err="No such process")], PRINT: [GONE]})
    service = made(loaded(tmp_path / "c.toml"), home=tmp_path)
    take(Launchd(tmp_path, 501).install(service, run), run, run.pause)
    assert run.commands[-1].startswith("launchctl bootstrap")


def test_what_launchctl_says_is_the_error(tmp_path: Path) -> None:
    run = Recorder(
        {
            ("launchctl", "bootstrap"): [
                Outcome(5, err="Bootstrap failed: 5: Input/output error\nx")
            ],
            PRINT: [GONE],
        }
    )
    with pytest.raises(OmlxError, match=r"code 5: Bootstrap failed: 5: Input/output error$"):
        service = made(loaded(tmp_path / "c"), home=tmp_path)
        take(Launchd(tmp_path, 501).install(service, run), run, run.pause)


def test_an_agent_that_does_not_end_is_not_waited_for_forever() -> None:
    run = Recorder()
    with pytest.raises(OmlxError, match="does not end"):
        take([WaitUntilGone(("launchctl", "print", AGENT), 10)], run, run.pause)
    assert 10 <= run.pauses <= 100


def test_start_and_stop_of_an_agent() -> None:
    """Loaded or not: bootstrap fails for what is loaded, and kickstart starts it."""
    run = Recorder({("launchctl", "bootstrap"): [Outcome(5)], PRINT: [GONE]})
    agent = Launchd(Path("/Users/ann"), 501)
    take(agent.start(), run, run.pause)
    plist = "/Users/ann/Library/LaunchAgents/org.omlx.server.plist"
    loading = [f"enable {AGENT}", f"bootstrap gui/501 {plist}", f"kickstart {AGENT}"]
    assert verbs(run.commands) == loading
    run.commands.clear()
    take(agent.stop(), run, run.pause)
    assert verbs(run.commands) == [f"bootout {AGENT}", f"print {AGENT}"]
    run.commands.clear()
    take(agent.reload(), run, run.pause)
    assert verbs(run.commands) == [f"kill SIGHUP {AGENT}"]


def test_uninstalling_an_agent_removes_its_file_after_it_has_ended() -> None:
    steps = Launchd(Path("/h"), 501).uninstall()
    assert [type(step) for step in steps] == [RunCommand, WaitUntilGone, Remove]
    assert steps[-1] == Remove(Launchd(Path("/h"), 501).file)


LOADED = """\
gui/501/org.omlx.server = {
\tactive count = 1
\tpath = /Users/ann/Library/LaunchAgents/org.omlx.server.plist
\ttype = LaunchAgent
\tstate = %s

\tprogram = /opt/omlx/bin/python
\truns = 3
%s\tlast exit code = %s
\tspawn type = interactive (4)
\tendpoints = {
\t\tpid = 99
\t}
}
"""


@pytest.mark.parametrize(
    ("code", "answer", "installed", "state"),
    [
        (
            0,
            LOADED % ("running", "\tpid = 123\n", "(never exited)"),
            True,
            (RunState.RUNNING, 123, None),
        ),
        (0, LOADED % ("running", "\tpid = 7\n", "1"), True, (RunState.RUNNING, 7, 1)),
        (113, "", True, (RunState.STOPPED, None, None)),
        (113, "", False, (RunState.NOT_INSTALLED, None, None)),
    ],
)
def test_the_state_of_an_agent(
    code: int, answer: str, installed: bool, state: tuple[RunState, int | None, int | None]
) -> None:
    assert launchd.read_state(code, answer, installed=installed) == ServiceState(*state)


@pytest.mark.parametrize(
    ("last", "state"),
    [("0", RunState.STOPPED), ("1", RunState.FAILED), ("78: EX_CONFIG", RunState.FAILED)],
)
def test_the_pid_of_another_table_is_not_the_agents(last: str, state: RunState) -> None:
    found = launchd.read_state(0, LOADED % ("spawn scheduled", "", last), installed=True)
    assert (found.state, found.pid) == (state, None)


def test_a_daemon_is_one_of_the_system() -> None:
    daemon, run = Launchd(ROLE.home, 0, ROLE), Recorder({PRINT: [Outcome(113)]})
    assert str(daemon.file) == "/Library/LaunchDaemons/org.omlx.server.plist"
    assert daemon.log_dir == ROLE.home / "Library" / "Logs" / "omlx_server"
    take([*daemon.start(), *daemon.reload(), *daemon.stop()], run, run.pause)
    assert verbs(run.commands) == [
        "enable system/org.omlx.server",
        "bootstrap system /Library/LaunchDaemons/org.omlx.server.plist",
        "kickstart system/org.omlx.server",
        "kill SIGHUP system/org.omlx.server",
        "bootout system/org.omlx.server",
        "print system/org.omlx.server",
    ]
    assert daemon.state(run).state is RunState.NOT_INSTALLED


# --- systemd -------------------------------------------------------------------------------------


def test_a_unit_is_known_before_it_is_started(tmp_path: Path) -> None:
    run = Recorder()
    service = made(loaded(tmp_path / "c.toml"), home=tmp_path)
    take(Systemd(tmp_path).install(service, None), run, run.pause)
    assert verbs(run.commands) == [
        "daemon-reload",
        "enable omlx-server.service",
        "reset-failed omlx-server.service",
        "restart --no-block omlx-server.service",
    ]
    assert Systemd(tmp_path).file.read_text(encoding="utf-8") == systemd.text_of(service)
    for directory in service.own:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_what_the_machine_can_do_is_asked_of_its_manager(tmp_path: Path) -> None:
    service = made(loaded(tmp_path / "c.toml"), home=tmp_path)
    can, cannot = Recorder(), Recorder({("systemd-run",): [Outcome(217)]})
    texts = []
    for run in (can, cannot):
        steps = Systemd(tmp_path).install(service, run)
        texts += [step.text for step in steps if isinstance(step, WriteFile)]
        shown, probed = run.commands
        assert shown.startswith("systemctl --user show omlx-server.service --property LoadState,")
        assert probed.startswith("systemd-run --user") and "PrivateUsers=yes" in probed
    assert texts == [systemd.text_of(service), systemd.text_of(service, namespaces=False)]


def test_start_stop_and_uninstall_of_a_unit() -> None:
    unit, run = (
        Systemd(Path("/nowhere")),
        Recorder({("systemctl", "--user", "disable"): [Outcome(1)]}),
    )
    steps = [*unit.start(), *unit.reload(), *unit.stop(), *unit.uninstall()]
    take(steps, run, run.pause)
    assert verbs(run.commands) == [
        "reset-failed omlx-server.service",
        "start --no-block omlx-server.service",
        "reload omlx-server.service",
        "stop omlx-server.service",
        "disable --now omlx-server.service",
        "daemon-reload",
        "reset-failed omlx-server.service",
    ]


def test_a_unit_of_the_system_asks_no_users_manager(tmp_path: Path) -> None:
    unit, run = Systemd(ANN.home, ANN), Recorder()
    assert str(unit.file) == "/etc/systemd/system/omlx-server.service"
    assert unit.install(made(loaded(tmp_path / "c.toml")), run)
    take([*unit.start(), *unit.stop(), *unit.reload()], run, run.pause)
    assert unit.answers(run) and "--user" not in unit.elsewhere(Path("/l"))
    assert all(command.startswith("systemctl ") for command in run.commands)
    assert not any("--user" in command for command in run.commands)


def test_root_talks_to_the_manager_of_another_user() -> None:
    entry = pwd.struct_passwd(("ann", "*", 501, 20, "", "/h/ann", "/bin/zsh"))
    commands = [
        " ".join(step.command)
        for platform in ("linux", "darwin")
        for step in login_manager(entry, platform).uninstall()
        if isinstance(step, RunCommand)
    ]
    assert "systemctl --user --machine=ann@.host disable --now omlx-server.service" in commands
    assert "launchctl bootout gui/501/org.omlx.server" in commands


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_the_user_of_an_installed_service_stays(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that installing again, as after an upgrade, needs no --user."""
    entries = {name: ("x", uid, uid, "", f"/h/{name}", "") for name, uid in (("ann", 7), ("bo", 8))}
    monkeypatch.setattr(pwd, "getpwnam", lambda name: pwd.struct_passwd((name, *entries[name])))
    monkeypatch.setattr(launchd, "DAEMON", tmp_path / "etc" / "file")
    monkeypatch.setattr(systemd, "SYSTEM_UNIT", tmp_path / "etc" / "file")
    fresh = system_manager("", platform)
    assert (fresh.account.is_ours, fresh.account.exists) == (True, False)
    named = system_manager("ann", platform)
    service = made(loaded(tmp_path / "c.toml"), home=tmp_path)
    [text] = [step.text for step in named.install(service, None) if isinstance(step, WriteFile)]
    named.file.parent.mkdir(parents=True)
    named.file.write_text(text)
    assert system_manager("", platform) == named
    assert named.home == Path("/h/ann")
    assert system_manager("bo", platform).account.name == "bo"


def shown(load: str, active: str, pid: int, status: int) -> str:
    return (
        f"MainPID={pid}\nExecMainStatus={status}\nStatusText=degraded: a = b\n"
        f"LoadState={load}\nActiveState={active}\n"
    )


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (shown("loaded", "active", 12, 0), (RunState.RUNNING, 12, None)),
        (shown("loaded", "activating", 12, 0), (RunState.STARTING, 12, None)),
        (shown("loaded", "deactivating", 12, 0), (RunState.STOPPING, 12, None)),
        (shown("loaded", "inactive", 0, 0), (RunState.STOPPED, None, 0)),
        (shown("loaded", "failed", 0, 1), (RunState.FAILED, None, 1)),
    ],
)
def test_the_state_of_a_unit(answer: str, state: tuple[RunState, int | None, int | None]) -> None:
    assert systemd.read_state(answer) == ServiceState(*state, says="degraded: a = b")


def test_a_unit_that_is_not_there() -> None:
    answer = shown("not-found", "inactive", 0, 0)
    assert systemd.read_state(answer) == ServiceState(RunState.NOT_INSTALLED)


# --- The runner ----------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_and_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "f"
    for text, mode in (("one", 0o644), ("twö", 0o600)):
        take([WriteFile(path, text, mode)], Recorder())
        assert path.read_text(encoding="utf-8") == text
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(path.parent.iterdir()) == [path]


def test_a_step_that_fails_ends_it_unless_it_may() -> None:
    run = Recorder({("false",): [Outcome(1, out="so it is\n")]})
    with pytest.raises(OmlxError, match=r"`false` failed with code 1: so it is$"):
        take(
            [RunCommand(("false",), may_fail=True), RunCommand(("false",)), RunCommand(("true",))],
            run,
        )
    assert run.commands == ["false", "false"]


def test_a_directory_that_can_not_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OmlxError, match=f"{tmp_path}/file/x: Not a directory"):
        take([MakeDirectory(tmp_path / "file" / "x")], Recorder())


def test_removing_what_is_gone_is_no_failure(tmp_path: Path) -> None:
    take([Remove(tmp_path / "gone")], Recorder())


def test_a_real_program_is_run_and_heard() -> None:
    outcome = run_program(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert outcome == Outcome(3, "out\n", "err\n")


def test_a_machine_without_a_manager_says_so() -> None:
    with pytest.raises(UsageError, match="launchctl-of-nowhere was not found") as caught:
        run_program(["launchctl-of-nowhere", "print"])
    assert "omlx-server serve" in caught.value.hint


def test_without_a_bus_the_reason_is_told() -> None:
    answer = Outcome(1, err="Failed to connect to bus: No medium found\n")
    with pytest.raises(OmlxError, match="there is no systemd here for this user"):
        Systemd(Path("/h")).state(Recorder({("systemctl",): [answer]}))


@pytest.mark.parametrize(("platform", "name"), [("darwin", "launchd"), ("linux", "systemd")])
def test_each_platform_has_its_manager(platform: str, name: str) -> None:
    manager: Manager = manager_here(Path("/h"), platform)
    assert manager.name == name
    assert Path("/h") in manager.file.parents
    assert Path("/h") in manager.log_dir.parents


def test_other_platforms_have_none() -> None:
    with pytest.raises(UsageError, match="no service manager on plan9"):
        manager_here(Path("/h"), "plan9")


# --- As another user -----------------------------------------------------------------------------


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that everybody may enter, unlike pytest's, with one of `nobody` in it."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    (place / "home").mkdir()
    entry = pwd.getpwnam("nobody")
    os.chown(place / "home", entry.pw_uid, entry.pw_gid)
    yield place
    shutil.rmtree(place)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")


@needs_root
def test_files_of_a_user_are_made_with_their_rights(open_place: Path) -> None:
    made_here, file = open_place / "home" / "a" / "b", open_place / "home" / "c" / "config.toml"
    take([MakeDirectory(made_here, "nobody"), WriteFile(file, "x", 0o600, "nobody")], Recorder())
    uid = pwd.getpwnam("nobody").pw_uid
    for path in (made_here, made_here.parent, file, file.parent):
        assert path.stat().st_uid == uid
    take([Remove(file, "nobody")], Recorder())
    assert not file.exists() and (os.geteuid(), os.getegid()) == (0, 0)
    with pytest.raises(OmlxError, match="Permission denied"):
        take([MakeDirectory(open_place / "theirs", "nobody")], Recorder())
    assert os.geteuid() == 0


@needs_root
def test_what_a_user_can_not_read_is_told_before_it_is_served(open_place: Path) -> None:
    secret = open_place / "secret"
    secret.mkdir(mode=0o700)
    (secret / "model").mkdir()
    good = (open_place, open_place / "home", open_place / "missing")
    take([CheckReadable(good, "nobody")], Recorder())
    for path in (secret, secret / "model", secret / "file"):
        with pytest.raises(UsageError, match=r"nobody can't read .*: Permission denied") as caught:
            take([CheckReadable((*good, path), "nobody")], Recorder())
        assert "--user NAME" in caught.value.hint
    assert os.geteuid() == 0


@needs_root
def test_a_config_that_root_changes_stays_its_owners(open_place: Path) -> None:
    """Else `sudo omlx-server config set` would take the service's config from it."""
    config = open_place / "home" / "config.toml"
    take([WriteFile(config, "", 0o600, "nobody")], Recorder())
    write_config(config, "[server]\nport = 9\n")
    state = config.stat()
    assert (state.st_uid, stat.S_IMODE(state.st_mode)) == (pwd.getpwnam("nobody").pw_uid, 0o600)
