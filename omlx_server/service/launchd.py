"""A launchd agent in the user's own domain, gui/UID. Pure: text and steps, and reading of text.

https://www.manpagez.com/man/5/launchd.plist/ and `man launchctl` are the sources.
"""

import plistlib
import re
from pathlib import Path
from typing import Any

from omlx_server.service.service import LONGEST_STOP_SECONDS, Service
from omlx_server.service.state import ServiceState, State, whole_number
from omlx_server.service.steps import MakeDirectory, Remove, Run, Step, WaitUntilGone, Write

LABEL = "org.omlx.server"
_THROTTLE_SECONDS = 10
_OPEN_FILES = 8192
_UMASK = 0o077  # a property list holds it as the decimal 63


def log_dir(home: Path) -> Path:
    return home / "Library" / "Logs" / "omlx_server"


def file_of(home: Path) -> Path:
    return home / "Library" / "LaunchAgents" / f"{LABEL}.plist"


def text_of(service: Service) -> str:
    """The property list. What a crash writes goes beside the log, which the server rotates."""
    return plistlib.dumps(_properties(service), sort_keys=False).decode()


def _properties(service: Service) -> dict[str, Any]:
    said = str(said_in(service.log))
    return {
        "Label": LABEL,
        "ProgramArguments": list(service.command),
        "WorkingDirectory": str(service.home),
        **_environment(service),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": _THROTTLE_SECONDS,
        # By default launchd kills after 20 s, in the middle of the grace.
        "ExitTimeOut": service.stop_seconds,
        # Anything else is slowed down when the machine is busy.
        "ProcessType": "Interactive",
        "SoftResourceLimits": {"NumberOfFiles": _OPEN_FILES},
        "Umask": _UMASK,
        "StandardOutPath": said,
        "StandardErrorPath": said,
    }


def _environment(service: Service) -> dict[str, dict[str, str]]:
    return {"EnvironmentVariables": dict(service.variables)} if service.variables else {}


def said_in(log: Path) -> Path:
    return log.with_name("launchd.log")


# --- Steps ---------------------------------------------------------------------------------------


def install(service: Service, uid: int) -> list[Step]:
    """The same whether one is installed, runs, or not."""
    path = file_of(service.home)
    return [
        *(MakeDirectory(directory) for directory in service.own),
        Remove(said_in(service.log)),  # nobody rotates it, so it starts anew
        Write(path, text_of(service)),
        *stop(uid),
        *_load(path, uid),
    ]


def uninstall(home: Path, uid: int) -> list[Step]:
    return [*stop(uid), Remove(file_of(home))]


def start(home: Path, uid: int) -> list[Step]:
    """One that is loaded can't be loaded again, but can be started."""
    load = [Run(step.command, may_fail=True) for step in _load(file_of(home), uid)]
    return [*load, Run(("launchctl", "kickstart", _target(uid)))]


def stop(uid: int) -> list[Step]:
    """Out of the domain: with KeepAlive launchd would start it again. It is back after a login.
    `bootout` returns early, and until the process has ended `bootstrap` fails."""
    return [
        Run(("launchctl", "bootout", _target(uid)), may_fail=True),
        WaitUntilGone(question(uid), LONGEST_STOP_SECONDS),
    ]


def reload(uid: int) -> list[Step]:
    return [Run(("launchctl", "kill", "SIGHUP", _target(uid)))]


def question(uid: int) -> tuple[str, ...]:
    """What `read_state` reads the answer of."""
    return ("launchctl", "print", _target(uid))


def _load(path: Path, uid: int) -> list[Run]:
    return [
        Run(("launchctl", "enable", _target(uid))),
        Run(("launchctl", "bootstrap", f"gui/{uid}", str(path))),
    ]


def _target(uid: int) -> str:
    return f"gui/{uid}/{LABEL}"


# --- Reading -------------------------------------------------------------------------------------


def read_state(code: int, answer: str, *, installed: bool) -> ServiceState:
    """`launchctl print` fails for what is not loaded."""
    if code:
        return ServiceState(State.STOPPED if installed else State.NOT_INSTALLED)
    pid = whole_number(_field(answer, "pid"))
    last = whole_number(_field(answer, "last exit code").partition(":")[0])
    if pid is not None:
        return ServiceState(State.RUNNING, pid, last)
    return ServiceState(State.FAILED if last else State.STOPPED, None, last)


def _field(answer: str, name: str) -> str:
    """Of the agent itself: tables within have fields of the same names, and stand further in."""
    found = re.search(rf"^\t{name} = (.*)$", answer, re.MULTILINE)
    return found[1].strip() if found else ""
