"""A systemd user unit. Pure: text and steps, and reading of text.

systemd.service(5), systemd.exec(5), systemd.unit(5) and systemd.syntax(7) are the sources.
"""

from collections.abc import Iterable
from pathlib import Path

from omlx_server.errors import UsageError
from omlx_server.service.service import Service
from omlx_server.service.state import ServiceState, State, whole_number
from omlx_server.service.steps import MakeDirectory, Remove, Run, Step, Write

UNIT = "omlx-server.service"
# As long as it is alive (engine/pulse.py) the server tells so twice in this time.
WATCHDOG_SECONDS = 60
# `:` switches the expansion of $VARIABLES off.
_TEMPLATE = """\
# Written by `omlx-server service install`, which writes it anew: don't edit it.
[Unit]
Description=omlx-server, an OpenAI-compatible server of local language models
After=network.target
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
ExecStart=:{command}
ExecReload=kill -HUP $MAINPID
WorkingDirectory=~
{environment}\
# The first start may fetch a model, which takes as long as it takes.
TimeoutStartSec=infinity
TimeoutStopSec={stop_seconds}
WatchdogSec={watchdog_seconds}
Restart=on-failure
RestartSec=10
LimitNOFILE=8192
UMask=0077

NoNewPrivileges=yes
{private_users}
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={writable}
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX

[Install]
WantedBy=default.target
"""
# Without it a manager that is not root's silently leaves out what it can't do to the file systems;
# and with it the service does not start where users may not have namespaces.
_PRIVATE_USERS = "PrivateUsers=yes"
_NO_PRIVATE_USERS = "# No PrivateUsers here, so the next three lines may have no effect."
_PROPERTIES = ("LoadState", "ActiveState", "MainPID", "ExecMainStatus", "StatusText")
_NOT_IN_PROGRAMS = "\"'\\"
_STATES = {
    "active": State.RUNNING,
    "reloading": State.RUNNING,
    "activating": State.STARTING,
    "deactivating": State.STOPPING,
    "failed": State.FAILED,
}


def log_dir(home: Path) -> Path:
    return home / ".local" / "state" / "omlx_server"


def file_of(home: Path) -> Path:
    return home / ".config" / "systemd" / "user" / UNIT


def text_of(service: Service, *, namespaces: bool = True) -> str:
    """The unit. Directories that are gone must not keep it from starting: hence the minus.

    Raises:
        UsageError: systemd takes no program of such a name.
    """
    program = service.command[0]
    if any(letter in program for letter in _NOT_IN_PROGRAMS):
        raise UsageError(
            f"systemd can't start {program}: there are quotes or a backslash in its path",
            hint="install omlx-server in another directory",
        )
    return _TEMPLATE.format(
        command=_quoted(service.command),
        environment=_environment(service),
        stop_seconds=service.stop_seconds,
        watchdog_seconds=WATCHDOG_SECONDS,
        private_users=_PRIVATE_USERS if namespaces else _NO_PRIVATE_USERS,
        writable=_quoted(f"-{path}" for path in service.writable),
    )


def _environment(service: Service) -> str:
    """A whole line, or none: an empty one is legal, but reads as if something were missing."""
    words = _quoted(f"{name}={text}" for name, text in service.variables)
    return f"Environment={words}\n" if words else ""


def _quoted(words: Iterable[str]) -> str:
    """Each between quotes, where a backslash, a quote and a percent sign mean something else."""
    return " ".join(f'"{_escaped(word)}"' for word in words)


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


# --- Steps ---------------------------------------------------------------------------------------


def probe() -> tuple[str, ...]:
    """Succeeds where users may have namespaces."""
    properties = ("--property", _PRIVATE_USERS, "--property", "ProtectSystem=strict")
    return ("systemd-run", "--user", "--wait", "--quiet", "--collect", *properties, "true")


def install(service: Service, *, namespaces: bool = True) -> list[Step]:
    """The same whether one is installed, runs, or not."""
    return [
        *(MakeDirectory(directory) for directory in service.own),
        Write(file_of(service.home), text_of(service, namespaces=namespaces)),
        _systemctl("daemon-reload"),
        _systemctl("enable", UNIT),
        _forgive(),
        _systemctl("restart", "--no-block", UNIT),
    ]


def uninstall(home: Path) -> list[Step]:
    return [
        _systemctl("disable", "--now", UNIT, may_fail=True),
        Remove(file_of(home)),
        _systemctl("daemon-reload"),
        _forgive(),
    ]


def start() -> list[Step]:
    return [_forgive(), _systemctl("start", "--no-block", UNIT)]


def stop() -> list[Step]:
    return [_systemctl("stop", UNIT)]


def reload() -> list[Step]:
    return [_systemctl("reload", UNIT)]


def question() -> tuple[str, ...]:
    """What `read_state` reads the answer of."""
    return ("systemctl", "--user", "show", UNIT, "--property", ",".join(_PROPERTIES))


def _forgive() -> Run:
    """After too many failures it would refuse to start."""
    return _systemctl("reset-failed", UNIT, may_fail=True)


def _systemctl(*words: str, may_fail: bool = False) -> Run:
    return Run(("systemctl", "--user", *words), may_fail)


# --- Reading -------------------------------------------------------------------------------------


def read_state(answer: str) -> ServiceState:
    fields = dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)
    if fields.get("LoadState") == "not-found":
        return ServiceState(State.NOT_INSTALLED)
    state = _STATES.get(fields.get("ActiveState", ""), State.STOPPED)
    pid = whole_number(fields.get("MainPID", "")) or None
    last = whole_number(fields.get("ExecMainStatus", ""))
    return ServiceState(state, pid, None if pid else last, fields.get("StatusText", ""))
