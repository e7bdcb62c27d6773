"""The service that starts at boot: who may change it, whom it replaces, and what is removed."""

import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from omlx_server.errors import UsageError
from omlx_server.service.managers import Manager, login_manager, manager_here, system_manager
from omlx_server.service.steps import CheckReadable, Remove, RunCommand, Step
from omlx_server.settings import Loaded
from omlx_server.settings.types import expanded

_SUDO = 'the same after sudo: sudo "$(command -v omlx-server)" service COMMAND --system'


def chosen_manager(*, system: bool, user: str = "", dry_run: bool = True) -> Manager:
    """Return the system's manager if asked for, or if only its service is installed. Raises
    UsageError for it without `dry_run` and root's rights."""
    manager = manager_here(expanded("~"))
    if system or not manager.file.exists():
        at_boot = system_manager(user)
        manager = at_boot if system or at_boot.file.exists() else manager
    if manager.account.name and os.geteuid() != 0 and not dry_run:
        raise UsageError("only root may change the service that starts at boot", hint=_SUDO)
    return manager


@contextmanager
def living_in(home: Path) -> Iterator[None]:
    """Have `~` be `home`, as it will be for the service."""
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = before


def steps_before(manager: Manager, loaded: Loaded) -> list[Step]:
    """Return the steps that make the account and check what it can read. None for a login
    service."""
    if not manager.account.name:
        return []
    config = loaded.source or manager.home
    paths = (config, *program_files(), *loaded.settings.models.dirs)
    return [*manager.account.make(), CheckReadable(paths, manager.account.name)]


def program_files() -> tuple[Path, ...]:
    return Path(sys.executable), Path(sys.base_prefix), Path(__file__).parents[2]


def steps_replacing(manager: Manager) -> list[Step]:
    """Return the steps that remove the login services that this one takes over from."""
    services = _login_services(manager).items()
    return [_of_user(step, name) for name, other in services for step in other.uninstall()]


def _of_user(step: Step, user: str) -> Step:
    """Let a step fail, or leave a file to its user: they could lead root elsewhere by a link."""
    match step:
        case RunCommand():
            return replace(step, may_fail=True)
        case Remove():
            return replace(step, user=user)
        case _:
            return step


def notes_on_replaced(manager: Manager) -> Iterator[str]:
    for name, other in _login_services(manager).items():
        yield f"it replaces the login service of {name}, {other.file}"
        if name != manager.account.name:
            yield f"the config and the models of {name} stay theirs; `--user {name}` serves them"


def _login_services(manager: Manager) -> dict[str, Manager]:
    services = {}
    if manager.account.name:
        for name in filter(None, {manager.account.name, os.environ.get("SUDO_USER", "")}):
            with suppress(KeyError):
                other = login_manager(pwd.getpwnam(name))
                if other.file.exists():
                    services[name] = other
    return services
