"""The unit and the property list: as they stand in the golden files, and true for odd paths."""

import dataclasses
import plistlib
import re
import shutil
import socket
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.errors import UsageError
from omlx_server.service import launchd, systemd
from omlx_server.service.launchd import Launchd
from omlx_server.service.managers import Manager
from omlx_server.service.service import Service
from omlx_server.service.steps import describe
from omlx_server.service.systemd import Systemd
from tests.service.made import ANN, HOME, KEY, OMLX, ROLE, loaded, made

GOLDEN = Path(__file__).with_name("golden")
PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
CONFIG = HOME / ".config" / "omlx_server" / "config.toml"
SERVICE = Service(
    command=(
        *("/opt/omlx/bin/python", "-P", "-m", "omlx_server", "serve"),
        *("--config", str(CONFIG), "--degraded-on-error"),
        *("--set", 'logging.file=/home/ann/my "logs" & <50%> $HOME/server.log'),
    ),
    home=HOME,
    log=HOME / 'my "logs" & <50%> $HOME' / "server.log",
    own=(HOME / "models", HOME / "kv"),
    writable=(HOME / "models", HOME / "kv", HOME / "50% \\ more"),
    stop_seconds=45,
    variables=(("HF_HOME", '/srv/my "hub" & <50%> $HOME'), ("no_proxy", "localhost,.lan")),
)

# Everything that a path may hold and a service's file can say, the hard ones often.
LETTERS = st.one_of(
    st.sampled_from(" %$\\\"'<>&;#=:-{}~*@\u00e9\u4e2d\U0001f600"),
    st.sampled_from(string.ascii_letters),
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/\ufffe\uffff"),
)
WORDS = st.text(LETTERS, min_size=1, max_size=12)


def service(word: str) -> Service:
    return Service(
        command=(f"/opt/{word}/python", "-m", word, f"--config=/etc/{word}"),
        home=Path("/home") / word,
        log=Path("/home") / word / "server.log",
        own=(Path("/home") / word,),
        writable=(Path("/srv") / word, Path("/mnt/a")),
        stop_seconds=45,
        variables=(("HF_HOME", f"/srv/{word}"), ("HTTPS_PROXY", f"http://{word}:3128")),
    )


def program(given: Service, path: str) -> Service:
    """The same with another program."""
    return dataclasses.replace(given, command=(path, *given.command[1:]))


def steps_of(manager: Manager) -> str:
    """What installing does, in words."""
    return "\n".join(describe(manager.install(SERVICE, None))) + "\n"


# --- Golden files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("omlx-server.service", systemd.text_of(SERVICE)),
        ("org.omlx.server.plist", launchd.text_of(SERVICE)),
        ("systemd-install.txt", steps_of(Systemd(HOME))),
        ("launchd-install.txt", steps_of(Launchd(HOME, 501))),
        ("systemd-system-install.txt", steps_of(Systemd(HOME, ANN))),
        ("launchd-system-install.txt", steps_of(Launchd(HOME, 0, ANN))),
    ],
)
def test_the_text_is_that_of_the_golden_file(name: str, text: str) -> None:
    """A wanted change: write the new text to tests/service/golden and read the difference."""
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


# --- systemd -------------------------------------------------------------------------------------


def unit_of(text: str) -> dict[str, str]:
    """Each key once, as systemd.syntax(7) reads a file."""
    lines = [line for line in text.split("\n") if line and line[0] not in "#;["]
    assert not any(line.endswith("\\") for line in lines), "a line would go on in the next"
    pairs = [line.split("=", 1) for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs)
    return {key: value.strip() for key, value in pairs}


def words_of(value: str) -> list[str]:
    """Words between double quotes, as systemd takes them apart: backslashes, then specifiers."""
    words, place = [], 0
    while place < len(value):
        assert value[place] == '"', value
        place, word = place + 1, ""
        while value[place] != '"':
            place += value[place] == "\\"
            word += value[place]
            place += 1
        words.append(word)
        assert value[place + 1 : place + 2] in ("", " ")
        place += 2
    assert all("%" not in word.replace("%%", "") for word in words), "a specifier"
    return [word.replace("%%", "%") for word in words]


@given(word=WORDS)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_systemd_reads_the_same_words_back(word: str) -> None:
    given = program(service(word), "/opt/a b%/python")
    unit = unit_of(systemd.text_of(given))
    assert unit["ExecStart"].startswith(":"), "variables would be expanded"
    assert tuple(words_of(unit["ExecStart"][1:])) == given.command
    writable = [f"-{path}" for path in service(word).writable]
    assert words_of(unit["ReadWritePaths"]) == writable
    variables = [f"{name}={text}" for name, text in given.variables]
    assert words_of(unit["Environment"]) == variables


@given(word=WORDS)
@settings(max_examples=50, derandomize=True, deadline=None)
def test_a_unit_of_the_system_waits_for_the_disks(word: str) -> None:
    given = program(service(word), "/opt/python")
    unit = unit_of(systemd.text_of(given, user="ann"))
    assert words_of(unit["RequiresMountsFor"]) == list(map(str, (given.home, *given.writable)))


def test_a_unit_of_the_system_keeps_to_its_rules() -> None:
    unit = unit_of(systemd.text_of(SERVICE, user="ann"))
    rules = {
        "User": "ann",
        "WantedBy": "multi-user.target",
        "After": "network-online.target",
        "Wants": "network-online.target",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "PrivateTmp": "yes",
        "CapabilityBoundingSet": "",
        "StartLimitIntervalSec": "0",
    }
    assert {key: unit[key] for key in rules} == rules
    assert "PrivateUsers" not in unit
    # Each of these closes the devices of GPUs.
    assert not {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"} & unit.keys()
    assert systemd.user_in(systemd.text_of(SERVICE, user="ann")) == "ann"
    assert systemd.user_in(systemd.text_of(SERVICE)) == ""


def test_only_a_home_of_its_own_is_writable_as_a_whole() -> None:
    for account, is_whole in ((OMLX, True), (ANN, False)):
        text = steps_of(Systemd(account.home, account))
        assert (f'ReadWritePaths="-{account.home}" ' in text) is is_whole


def test_the_unit_keeps_to_the_rules() -> None:
    unit = unit_of(systemd.text_of(SERVICE))
    rules = {
        "Type": "notify",
        "NotifyAccess": "main",
        "Restart": "on-failure",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "PrivateTmp": "yes",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX AF_NETLINK",
        "UMask": "0077",
        "StartLimitIntervalSec": "0",  # an owner may restart it often
    }
    assert {key: unit[key] for key in rules} == rules
    # An engine counts as stuck after 30 s without a beat; only then may the watchdog bite.
    assert int(unit["WatchdogSec"]) > 30


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("word", ["plain", "a b%c$d", "<&>;#=é"])
@pytest.mark.parametrize("user", ["", "daemon"])
def test_systemd_itself_finds_nothing_wrong(user: str, word: str, tmp_path: Path) -> None:
    python = tmp_path / word / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    given = service(word)
    unit = tmp_path / systemd.UNIT
    unit.write_text(systemd.text_of(program(given, str(python)), user=user), encoding="utf-8")
    (tmp_path / "run").mkdir(mode=0o700)
    done = subprocess.run(
        ["systemd-analyze", "--system" if user else "--user", "verify", str(unit)],
        env={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run"), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_page_tells_what_the_unit_takes_from_the_service() -> None:
    """Each line of the table stands in the unit, and the unit takes nothing else."""
    table = PAGE.partition("| in the unit |")[2].partition("\n\n")[0]
    told = re.findall(r"`(\w+=[^`]+)`(?= \||, `)", table)
    lines = systemd.text_of(SERVICE).splitlines()
    hardening = lines[lines.index("NoNewPrivileges=yes") : lines.index("[Install]") - 1]
    kept = [line for line in hardening if line[0] != "#" and not line.startswith("ReadWritePaths")]
    assert sorted(told) == sorted([*kept, "UMask=0077"])
    assert "UMask=0077" in lines
    needs_users = kept[kept.index("PrivateUsers=yes") + 1 :][:2]
    assert needs_users == ["PrivateTmp=yes", "ProtectSystem=strict"]
    assert systemd.text_of(SERVICE, namespaces=False).count("the next three lines") == 1


def test_the_page_tells_what_only_a_unit_of_the_system_takes() -> None:
    told = set(re.findall(r"`(\w+=\w*)`", PAGE.partition("A unit of the system")[2]))
    both = set(systemd.text_of(SERVICE).splitlines())
    lines = systemd.text_of(SERVICE, user="ann").splitlines()
    hardening = lines[lines.index("NoNewPrivileges=yes") : lines.index("[Install]") - 1]
    assert told == {line for line in set(hardening) - both if line[0] != "#"}


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
@pytest.mark.parametrize("netlink", [True, False])
def test_a_service_knows_the_addresses_of_its_machine(netlink: bool) -> None:
    """With the sockets that the unit allows. Without netlink it would know its name alone."""
    families = unit_of(systemd.text_of(SERVICE))["RestrictAddressFamilies"].split()
    given = families if netlink else [name for name in families if name != "AF_NETLINK"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.service.socket_filter", *given],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert socket.gethostname().lower() in names
    assert ("127.0.0.1" in names) is netlink


@pytest.mark.parametrize("letter", ["'", '"', "\\"])
def test_a_program_that_systemd_would_not_start_is_refused(letter: str) -> None:
    with pytest.raises(UsageError, match="systemd can't start"):
        systemd.text_of(program(SERVICE, f"/opt/a{letter}b/python"))


def test_without_namespaces_for_users_the_service_starts_all_the_same() -> None:
    """An explicit PrivateUsers would keep it from starting."""
    unit = unit_of(systemd.text_of(SERVICE, namespaces=False))
    assert "PrivateUsers" not in unit
    assert unit_of(systemd.text_of(SERVICE))["PrivateUsers"] == "yes"


# --- launchd -------------------------------------------------------------------------------------


@given(word=WORDS)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_launchd_reads_the_same_words_back(word: str) -> None:
    given = service(word)
    found = plistlib.loads(launchd.text_of(given).encode())
    assert tuple(found["ProgramArguments"]) == given.command
    assert found["WorkingDirectory"] == str(given.home)
    assert tuple(found["EnvironmentVariables"].items()) == given.variables
    assert found["StandardErrorPath"] == str(given.log.with_name("launchd.log"))


def test_the_property_list_keeps_to_the_rules() -> None:
    found = plistlib.loads(launchd.text_of(SERVICE).encode())
    rules = {
        "Label": launchd.LABEL,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ProcessType": "Interactive",
        "SoftResourceLimits": {"NumberOfFiles": 8192},
        "Umask": 63,
        "RunAtLoad": True,
    }
    assert {key: found[key] for key in rules} == rules
    assert found["StandardOutPath"] != str(SERVICE.log), "the server rotates its own log"
    assert Path(found["StandardOutPath"]).is_absolute()


def test_a_daemon_has_a_user_and_their_home() -> None:
    found = plistlib.loads(launchd.text_of(SERVICE, "_omlx").encode())
    agent = plistlib.loads(launchd.text_of(SERVICE).encode())
    assert found.pop("UserName") == "_omlx"
    assert found["EnvironmentVariables"].pop("HOME") == str(HOME)
    assert found == agent, "an agent differs in nothing else"
    assert launchd.user_in(launchd.text_of(SERVICE, "_omlx")) == "_omlx"
    assert launchd.user_in(launchd.text_of(SERVICE)) == ""


def test_the_page_tells_the_rules_of_the_property_list() -> None:
    section = PAGE.partition("## macOS")[2].partition("## ")[0]
    found = plistlib.loads(launchd.text_of(SERVICE).encode())
    told = set(re.findall(r"`([A-Z]\w+)`", section)) - {"SuccessfulExit", "Interactive"}
    assert told == {"KeepAlive", "ThrottleInterval", "SoftResourceLimits", "Umask", "ProcessType"}
    assert told <= found.keys()
    assert f"every {found['ThrottleInterval']} seconds" in section
    assert f"{found['SoftResourceLimits']['NumberOfFiles']:,} open files" in section


def test_without_variables_there_is_no_word_of_them() -> None:
    bare = dataclasses.replace(SERVICE, variables=())
    assert "Environment" not in systemd.text_of(bare)
    assert "WorkingDirectory=~\n# The first start" in systemd.text_of(bare)
    assert "Environment" not in launchd.text_of(bare)


# --- Both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("grace", [0, 0.4, 25, 3600])
def test_a_manager_waits_longer_than_the_requests_may_take(grace: float, tmp_path: Path) -> None:
    text = f"[server]\nshutdown_grace_seconds = {grace}\n"
    given = made(loaded(tmp_path / "c.toml", text))
    # The cold tier may be written for 10 s after the requests.
    assert plistlib.loads(launchd.text_of(given).encode())["ExitTimeOut"] > grace + 10
    assert int(unit_of(systemd.text_of(given))["TimeoutStopSec"]) > grace + 10


def test_nothing_secret_stands_in_either_file(tmp_path: Path) -> None:
    text = f'[auth]\napi_keys = ["{KEY}"]\n[cache]\nremote = "redis://u:{KEY}@h"\n'
    given = made(loaded(tmp_path / "c.toml", text))
    managers = (
        *(Launchd(given.home, 501), Systemd(given.home)),
        *(Launchd(ROLE.home, 0, ROLE), Systemd(OMLX.home, OMLX)),
    )
    steps = [step for manager in managers for step in manager.install(given, None)]
    assert KEY not in "\n".join(describe(steps)) + repr(given)


def test_the_same_interpreter_serves_the_config_that_was_checked(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    command = made(loaded(config)).command
    assert command[:5] == ("/opt/omlx/bin/python", "-P", "-m", "omlx_server", "serve")
    assert command[5:8] == ("--config", str(config), "--degraded-on-error")
    assert command[8:] == ("--set", "logging.file=/home/ann/logs/server.log")


def test_a_log_that_the_config_names_is_left_to_it(tmp_path: Path) -> None:
    given = made(loaded(tmp_path / "c.toml", '[logging]\nfile = "/var/x/y.log"\n'))
    assert not any("logging" in word for word in given.command)
    assert given.log == Path("/var/x/y.log")
    assert Path("/var/x") in given.own


def test_directories_are_absolute_and_each_comes_once(tmp_path: Path) -> None:
    text = '[models]\ndirs = ["m", "/m"]\n[cache]\ncold_dir = "/m"\n'
    given = made(loaded(tmp_path / "c.toml", text))
    assert given.own[:2] == (HOME / "m", Path("/m"))
    assert all(path.is_absolute() for path in given.writable)
    assert len(set(given.writable)) == len(given.writable)
    assert {*given.own, tmp_path} <= set(given.writable)


@pytest.mark.parametrize("hot_only", ["hot_cache_only = true", "enabled = false"])
def test_a_cold_tier_that_is_off_gets_no_directory(hot_only: str, tmp_path: Path) -> None:
    given = made(loaded(tmp_path / "c.toml", f'[cache]\ncold_dir = "/kv"\n{hot_only}\n'))
    assert Path("/kv") not in given.writable


@pytest.mark.parametrize("letter", ["\n", "\x01", "\x7f", "\udc80", "\ufffe"])
def test_what_no_file_can_say_is_refused(letter: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't hold"):
        made(loaded(tmp_path / "c.toml"), python=f"/opt/a{letter}b/python")


def test_a_socket_and_the_servers_token_have_a_place(tmp_path: Path) -> None:
    given = made(loaded(tmp_path / "c.toml", '[server]\nuds = "run/s.sock"\n'))
    assert {HOME / "run", HOME / ".config" / "omlx_server"} <= set(given.writable)
    assert HOME / "run" not in made(loaded(tmp_path / "d.toml", "")).writable
