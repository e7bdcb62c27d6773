"""launchd and systemd behind the same verbs. A verb is a list of steps; asking runs a program."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from omlx_server.errors import UsageError
from omlx_server.service import launchd, systemd
from omlx_server.service.runner import Runner, failed
from omlx_server.service.service import Service
from omlx_server.service.state import ServiceState
from omlx_server.service.steps import Step


class Manager(Protocol):
    """`file` is what makes it a service, `hint` something to know of this manager."""

    @property
    def name(self) -> str: ...
    @property
    def hint(self) -> str: ...
    @property
    def file(self) -> Path: ...
    @property
    def log_dir(self) -> Path: ...
    def install(self, service: Service, run: Runner | None) -> list[Step]:
        """`run` finds out what this machine can do; without it the best is assumed. Raises
        OmlxError where nobody could start the service."""

    def answers(self, run: Runner) -> bool:
        """Whether it is there to be told something."""

    def uninstall(self) -> list[Step]: ...
    def start(self) -> list[Step]: ...
    def stop(self) -> list[Step]: ...
    def reload(self) -> list[Step]: ...
    def state(self, run: Runner) -> ServiceState: ...
    def elsewhere(self, log: Path) -> str:
        """Where a crash shows that came before or beside the log."""


@dataclass(frozen=True, slots=True)
class Launchd:
    home: Path
    uid: int
    name: str = "launchd"
    hint: str = ""

    @property
    def file(self) -> Path:
        return launchd.file_of(self.home)

    @property
    def log_dir(self) -> Path:
        return launchd.log_dir(self.home)

    def install(self, service: Service, run: Runner | None) -> list[Step]:
        return launchd.install(service, self.uid)

    def answers(self, run: Runner) -> bool:
        return True

    def uninstall(self) -> list[Step]:
        return launchd.uninstall(self.home, self.uid)

    def start(self) -> list[Step]:
        return launchd.start(self.home, self.uid)

    def stop(self) -> list[Step]:
        return launchd.stop(self.uid)

    def reload(self) -> list[Step]:
        return launchd.reload(self.uid)

    def state(self, run: Runner) -> ServiceState:
        outcome = run(launchd.question(self.uid))
        return launchd.read_state(outcome.code, outcome.out, installed=self.file.exists())

    def elsewhere(self, log: Path) -> str:
        return f"crashes: {launchd.said_in(log)}"


@dataclass(frozen=True, slots=True)
class Systemd:
    home: Path
    name: str = "systemd"
    hint: str = "It ends when you log out, unless you say once: loginctl enable-linger"

    @property
    def file(self) -> Path:
        return systemd.file_of(self.home)

    @property
    def log_dir(self) -> Path:
        return systemd.log_dir(self.home)

    def install(self, service: Service, run: Runner | None) -> list[Step]:
        if run is None:
            return systemd.install(service)
        self.state(run)
        return systemd.install(service, namespaces=run(systemd.probe()).code == 0)

    def answers(self, run: Runner) -> bool:
        try:
            return run(systemd.question()).code == 0
        except UsageError:
            return False

    def uninstall(self) -> list[Step]:
        return systemd.uninstall(self.home)

    def start(self) -> list[Step]:
        return systemd.start()

    def stop(self) -> list[Step]:
        return systemd.stop()

    def reload(self) -> list[Step]:
        return systemd.reload()

    def state(self, run: Runner) -> ServiceState:
        """Raises OmlxError where no systemd answers."""
        command = systemd.question()
        outcome = run(command)
        if outcome.code:
            raise failed(command, outcome)
        return systemd.read_state(outcome.out)

    def elsewhere(self, log: Path) -> str:
        return f"crashes: journalctl --user -u {systemd.UNIT}"


_PLATFORMS: Mapping[str, str] = MappingProxyType({"darwin": "launchd", "linux": "systemd"})


def manager_here(home: Path, platform: str = sys.platform) -> Manager:
    """Raises UsageError on a system that has neither."""
    match _PLATFORMS.get(platform):
        case "launchd":
            return Launchd(home, os.getuid())
        case "systemd":
            return Systemd(home)
        case _:
            raise UsageError(
                f"there is no service manager on {platform} that omlx-server knows",
                hint="launchd (macOS) and systemd (Linux) it knows; elsewhere run it by hand",
            )
