"""A launchd agent in the user's domain, gui/UID, or a daemon in the system's. Sources:
https://www.manpagez.com/man/5/launchd.plist/ and `man launchctl`."""

import plistlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.service.account import ANYBODY, Account
from omlx_server.service.service import LONGEST_STOP_SECONDS, Service
from omlx_server.service.state import RunState, ServiceState, whole_number
from omlx_server.service.steps import (
    MakeDirectory,
    Remove,
    RunCommand,
    Runner,
    Step,
    WaitUntilGone,
    WriteFile,
)

LABEL = "org.omlx.server"
DAEMON = Path("/Library/LaunchDaemons") / f"{LABEL}.plist"
_THROTTLE_SECONDS = 10
_OPEN_FILES = 8192
_UMASK = 0o077  # a property list holds it as the decimal 63


@dataclass(frozen=True, slots=True)
class Launchd:
    """The launchd of one user, or with a named `account` that of the system. Only `state` runs a
    program; the others return steps."""

    home: Path
    uid: int
    account: Account = ANYBODY
    name: str = "launchd"

    @property
    def file(self) -> Path:
        """The property list, which exists if the service is installed."""
        agent = self.home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        return DAEMON if self.account.name else agent

    @property
    def hint(self) -> str:
        return "With FileVault it starts once the disk is unlocked." if self.account.name else ""

    @property
    def log_dir(self) -> Path:
        return self.home / "Library" / "Logs" / "omlx_server"

    def install(self, service: Service, run: Runner | None) -> list[Step]:
        user = self.account.name
        return [
            *(MakeDirectory(directory, user) for directory in service.own),
            Remove(said_in(service.log), user),
            WriteFile(self.file, text_of(service, user)),
            *self.stop(),
            *self._load(),
        ]

    def answers(self, run: Runner) -> bool:
        return True

    def uninstall(self) -> list[Step]:
        return [*self.stop(), Remove(self.file)]

    def start(self) -> list[Step]:
        """Return the steps that load and start the agent. Loading a loaded one fails without
        harm."""
        return [*self._load(may_fail=True), RunCommand(("launchctl", "kickstart", self._target))]

    def stop(self) -> list[Step]:
        """Return the steps that unload the agent until the next login. `bootout` returns before
        the process has ended, and a `bootstrap` before that fails."""
        return [
            RunCommand(("launchctl", "bootout", self._target), may_fail=True),
            WaitUntilGone(self._question, LONGEST_STOP_SECONDS),
        ]

    def reload(self) -> list[Step]:
        return [RunCommand(("launchctl", "kill", "SIGHUP", self._target))]

    def state(self, run: Runner) -> ServiceState:
        outcome = run(self._question)
        return read_state(outcome.code, outcome.out, installed=self.file.exists())

    def elsewhere(self, log: Path) -> str:
        """Return where the output of a crash is that did not reach `log`."""
        return f"crashes: {said_in(log)}"

    def _load(self, *, may_fail: bool = False) -> list[RunCommand]:
        return [
            RunCommand(("launchctl", "enable", self._target), may_fail),
            RunCommand(("launchctl", "bootstrap", self._domain, str(self.file)), may_fail),
        ]

    @property
    def _question(self) -> tuple[str, ...]:
        return ("launchctl", "print", self._target)

    @property
    def _target(self) -> str:
        return f"{self._domain}/{LABEL}"

    @property
    def _domain(self) -> str:
        return "system" if self.account.name else f"gui/{self.uid}"


def text_of(service: Service, user: str = "") -> str:
    """Return the property list. stdout and stderr go beside the log, which the server rotates."""
    return plistlib.dumps(_properties(service, user), sort_keys=False).decode()


def user_in(text: str) -> str:
    """Return the user that a daemon's property list names."""
    return str(plistlib.loads(text.encode()).get("UserName", ""))


def _properties(service: Service, user: str) -> dict[str, Any]:
    output = str(said_in(service.log))
    home = {"HOME": str(service.home)} if user else {}
    variables = home | dict(service.variables)
    return {
        "Label": LABEL,
        **({"UserName": user} if user else {}),
        "ProgramArguments": list(service.command),
        "WorkingDirectory": str(service.home),
        **({"EnvironmentVariables": variables} if variables else {}),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": _THROTTLE_SECONDS,
        # By default launchd kills after 20 s, in the middle of the grace.
        "ExitTimeOut": service.stop_seconds,
        # Anything else is slowed down when the machine is busy.
        "ProcessType": "Interactive",
        "SoftResourceLimits": {"NumberOfFiles": _OPEN_FILES},
        "Umask": _UMASK,
        "StandardOutPath": output,
        "StandardErrorPath": output,
    }


def said_in(log: Path) -> Path:
    return log.with_name("launchd.log")


def read_state(code: int, answer: str, *, installed: bool) -> ServiceState:
    """Parse the output of `launchctl print`, which fails for an agent that is not loaded."""
    if code:
        return ServiceState(RunState.STOPPED if installed else RunState.NOT_INSTALLED)
    pid = whole_number(_field(answer, "pid"))
    last = whole_number(_field(answer, "last exit code").partition(":")[0])
    if pid is not None:
        return ServiceState(RunState.RUNNING, pid, last)
    return ServiceState(RunState.FAILED if last else RunState.STOPPED, None, last)


def _field(answer: str, name: str) -> str:
    """Return the agent's own field `name`; inner tables are indented deeper."""
    match = re.search(rf"^\t{name} = (.*)$", answer, re.MULTILINE)
    return match[1].strip() if match else ""
