"""A systemd unit, of a user or of the system. Sources: systemd.service(5), systemd.exec(5),
systemd.unit(5), systemd.syntax(7)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from omlx_server.errors import UsageError
from omlx_server.service.account import ANYBODY, Account
from omlx_server.service.service import STATE, Service
from omlx_server.service.state import RunState, ServiceState, whole_number
from omlx_server.service.steps import (
    MakeDirectory,
    Remove,
    RunCommand,
    Runner,
    Step,
    WriteFile,
    failed,
)
from omlx_server.settings.types import own_place

UNIT = "omlx-server.service"
SYSTEM_UNIT = Path("/etc/systemd/system") / UNIT
# While the server is alive it pings the watchdog twice in this time.
WATCHDOG_SECONDS = 60
# `:` switches the expansion of $VARIABLES off.
_TEMPLATE = """\
# Written by `omlx-server service install`, which writes it anew: don't edit it.
[Unit]
Description=omlx-server, an OpenAI-compatible server of local language models
{order}
# It is never given up: its owner may restart it often, and the server's own pause grows with each
# start that fails.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
{user}\
ExecStart=:{command}
ExecReload=kill -HUP $MAINPID
WorkingDirectory=~
{environment}\
# The first start may fetch a model, which takes as long as it takes.
TimeoutStartSec=infinity
TimeoutStopSec={stop_seconds}
# Processes that the server has started are ended by it, in order.
KillMode=mixed
WatchdogSec={watchdog_seconds}
Restart=on-failure
RestartSec=10
LimitNOFILE=8192
UMask=0077

NoNewPrivileges=yes
{hardening}
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={writable}
# Netlink tells the addresses of this machine, by which clients may call the server.
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy={target}
"""
_USER_ORDER = "After=network.target"
_SYSTEM_ORDER = """\
After=network-online.target
Wants=network-online.target
RequiresMountsFor={mounts}"""
# Nothing about devices or the clock, which would close the devices of GPUs.
_SYSTEM_HARDENING = """\
CapabilityBoundingSet=
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
RemoveIPC=yes"""
# Without PrivateUsers the manager of a user silently ignores the options on file systems below it.
# With it, the service does not start on machines where users may not create namespaces.
_PRIVATE_USERS = "PrivateUsers=yes"
_NO_PRIVATE_USERS = "# No PrivateUsers here, so the next three lines may have no effect."
_PROPERTIES = ("LoadState", "ActiveState", "MainPID", "ExecMainStatus", "StatusText")
_NOT_IN_PROGRAMS = "\"'\\"
_STATES = {
    "active": RunState.RUNNING,
    "reloading": RunState.RUNNING,
    "activating": RunState.STARTING,
    "deactivating": RunState.STOPPING,
    "failed": RunState.FAILED,
}


@dataclass(frozen=True, slots=True)
class Systemd:
    """The systemd of one user, or with a named `account` that of the system. `login`: the user,
    for root. `answers`, `state` and, if given `run`, `install` run a program; the others return
    steps."""

    home: Path
    account: Account = ANYBODY
    login: str = ""
    name: str = "systemd"

    @property
    def file(self) -> Path:
        own = self.home / ".config" / "systemd" / "user" / UNIT
        return SYSTEM_UNIT if self.account.name else own

    @property
    def hint(self) -> str:
        words = "It ends when you log out, unless you say once: loginctl enable-linger"
        return "" if self.account.name else words

    @property
    def log_dir(self) -> Path:
        return own_place(STATE, self.home)

    def install(self, service: Service, run: Runner | None) -> list[Step]:
        """Return the steps that write the unit and (re)start it. `run` asks whether users may
        create namespaces. Raises OmlxError if no systemd answers it, UsageError for the
        program's path."""
        if run is not None:
            self.state(run)
        user = self.account.name
        if self.account.is_ours:
            service = replace(service, writable=(self.home, *service.writable))
        namespaces = run is None or bool(user) or run(_PROBE).code == 0
        return [
            *(MakeDirectory(directory, user) for directory in service.own),
            WriteFile(self.file, text_of(service, namespaces=namespaces, user=user)),
            self._systemctl("daemon-reload"),
            self._systemctl("enable", UNIT),
            self._forgive,
            self._systemctl("restart", "--no-block", UNIT),
        ]

    def answers(self, run: Runner) -> bool:
        try:
            return run(self._question).code == 0
        except UsageError:
            return False

    def uninstall(self) -> list[Step]:
        return [
            self._systemctl("disable", "--now", UNIT, may_fail=True),
            Remove(self.file),
            self._systemctl("daemon-reload"),
            self._forgive,
        ]

    def start(self) -> list[Step]:
        return [self._forgive, self._systemctl("start", "--no-block", UNIT)]

    def stop(self) -> list[Step]:
        return [self._systemctl("stop", UNIT)]

    def reload(self) -> list[Step]:
        return [self._systemctl("reload", UNIT)]

    def state(self, run: Runner) -> ServiceState:
        """Raises OmlxError if no systemd answers."""
        outcome = run(self._question)
        if outcome.code:
            raise failed(self._question, outcome)
        return read_state(outcome.out)

    def elsewhere(self, log: Path) -> str:
        scope = "" if self.account.name else "--user "
        return f"crashes: journalctl {scope}-u {UNIT}"

    @property
    def _question(self) -> tuple[str, ...]:
        """The command whose output `read_state` parses."""
        return self._systemctl("show", UNIT, "--property", ",".join(_PROPERTIES)).command

    @property
    def _forgive(self) -> RunCommand:
        """Clears the last failure, which a removed unit would be listed with."""
        return self._systemctl("reset-failed", UNIT, may_fail=True)

    def _systemctl(self, *words: str, may_fail: bool = False) -> RunCommand:
        scope = () if self.account.name else ("--user",)
        machine = (f"--machine={self.login}@.host",) if self.login else ()
        return RunCommand(("systemctl", *scope, *machine, *words), may_fail)


_WANTED = ("--property", _PRIVATE_USERS, "--property", "ProtectSystem=strict")
_PROBE = ("systemd-run", "--user", "--wait", "--quiet", "--collect", *_WANTED, "true")
"""A command that succeeds where users may create namespaces."""


def text_of(service: Service, *, namespaces: bool = True, user: str = "") -> str:
    """Return the unit's text; of the system's with `user`. A minus before a path lets the unit
    start without it. Raises UsageError for a program with quotes or a backslash in its path."""
    program = service.command[0]
    if any(letter in program for letter in _NOT_IN_PROGRAMS):
        raise UsageError(
            f"systemd can't start {program}: there are quotes or a backslash in its path",
            hint="install omlx-server in another directory",
        )
    environment = _quoted(f"{name}={text}" for name, text in service.variables)
    users = _PRIVATE_USERS if namespaces else _NO_PRIVATE_USERS
    mounts = dict.fromkeys((service.home, *service.writable))
    return _TEMPLATE.format(
        command=_quoted(service.command),
        environment=f"Environment={environment}\n" if environment else "",
        stop_seconds=service.stop_seconds,
        watchdog_seconds=WATCHDOG_SECONDS,
        order=_SYSTEM_ORDER.format(mounts=_quoted(map(str, mounts))) if user else _USER_ORDER,
        user=f"User={user}\n" if user else "",
        hardening=_SYSTEM_HARDENING if user else users,
        target="multi-user.target" if user else "default.target",
        writable=_quoted(f"-{path}" for path in service.writable),
    )


def user_in(text: str) -> str:
    """Return the user that a unit of the system names."""
    match = re.search(r"^User=(.+)$", text, re.MULTILINE)
    return match[1] if match else ""


def _quoted(words: Iterable[str]) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "%": "%%"})
    return " ".join(f'"{word.translate(escapes)}"' for word in words)


def read_state(answer: str) -> ServiceState:
    fields = dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)
    if fields.get("LoadState") == "not-found":
        return ServiceState(RunState.NOT_INSTALLED)
    state = _STATES.get(fields.get("ActiveState", ""), RunState.STOPPED)
    pid = whole_number(fields.get("MainPID", "")) or None
    last = whole_number(fields.get("ExecMainStatus", ""))
    return ServiceState(state, pid, None if pid else last, fields.get("StatusText", ""))
