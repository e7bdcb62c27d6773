"""`omlx-server service`: installs, controls and shows the server as a background service."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from omlx_server import settings
from omlx_server.cli.service.system import (
    chosen_manager,
    living_in,
    notes_on_replaced,
    steps_before,
    steps_replacing,
)
from omlx_server.cli.shell.output import show_result
from omlx_server.errors import OmlxError, PlaceUnusable, UsageError
from omlx_server.service import tail
from omlx_server.service.environment import environment_of
from omlx_server.service.managers import Manager
from omlx_server.service.service import LOG_NAME, service_of
from omlx_server.service.state import RunState, ServiceState
from omlx_server.service.steps import Remove, Step, WriteFile, describe, run_program, take
from omlx_server.settings.layers import salvage, search_path
from omlx_server.settings.types import expanded

_EMPTY_CONFIG = "# Settings of omlx-server. `omlx-server config show` lists them all.\n"
# The mode of a new config file, which may hold API keys one day.
_CONFIG_MODE = 0o600
_NO_ENVIRONMENT: MappingProxyType[str, str] = MappingProxyType({})


def install(*, config: Path | None, dry_run: bool, system: bool = False, user: str = "") -> int:
    if user and not system:
        raise UsageError("--user is for a service that starts at boot", hint="add --system")
    manager = chosen_manager(system=system, user=user, dry_run=dry_run)
    if manager.account.name and not system:
        raise UsageError(
            f"a service that starts at boot is installed: {manager.file}",
            hint="service install --system renews it; service uninstall --system removes it",
        )
    with living_in(manager.home):
        return _install(manager, config, dry_run=dry_run)


def _install(manager: Manager, config: Path | None, *, dry_run: bool) -> int:
    file = _config_file(config)
    environment = environment_of(os.environ, home=expanded("~"), here=Path.cwd())
    loaded = _settings_of_file(file)
    service = service_of(
        loaded,
        python=Path(sys.executable),
        home=manager.home,
        log_dir=manager.log_dir,
        environment=environment,
    )
    notes = (*_notes_on_shell_settings(file), *environment.left, *notes_on_replaced(manager))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    config_steps = []
    if not file.exists():
        config_steps.append(WriteFile(file, _EMPTY_CONFIG, _CONFIG_MODE, manager.account.name))
    steps = [
        *steps_before(manager, loaded),
        *config_steps,
        *steps_replacing(manager),
        *manager.install(service, None if dry_run else run_program),
    ]
    is_new = not manager.file.exists()
    words = [
        f"Installed as {manager.file}, with the settings of {file}.",
        f"It starts now and at every {_moment(manager)}: `omlx-server service status` tells how "
        "it is.",
        *filter(None, [manager.hint]),
    ]
    try:
        return take_or_describe(steps, *words, dry_run=dry_run)
    except OmlxError:
        if is_new:
            _undo_install(manager, config_steps)
        else:
            print(f"note: {manager.file} is written anew and stays", file=sys.stderr)
        raise


def _undo_install(manager: Manager, config_steps: list[WriteFile]) -> None:
    """Undo a failed installation, so that nothing starts at login or boot."""
    steps: list[Step] = [Remove(step.path, step.user) for step in config_steps]
    with suppress(OmlxError):
        take([*steps, *manager.uninstall()], run_program)


def uninstall(*, dry_run: bool, system: bool = False, purge: bool = False) -> int:
    manager = chosen_manager(system=system, dry_run=dry_run)
    account, is_there = manager.account, manager.file.exists()
    if purge and not account.is_ours:
        raise UsageError(
            f"the files of this service belong to {account.name or 'you'}, so they stay",
            hint="without --purge the service alone is removed",
        )
    if not (is_there or purge):
        print("No service is installed.")
        return 0
    if is_there and not (dry_run or manager.answers(run_program)):
        why = f"No {manager.name} answers here, so nothing was stopped."
        return take_or_describe(
            [Remove(manager.file)], f"{manager.file} is removed. {why}", dry_run=False
        )
    words = [f"Stopped, and {manager.file} is removed."]
    if account.is_ours:
        left = "are removed" if purge else "stay; with --purge they go as well"
        words.append(f"{account.name} and {account.home} {left}.")
    steps = [*(manager.uninstall() if is_there else []), *(account.remove() if purge else [])]
    return take_or_describe(steps, *words, dry_run=dry_run)


def status(*, as_json: bool, system: bool = False) -> int:
    manager = chosen_manager(system=system)
    state = manager.state(run_program)
    show_result(_status_json(manager, state), _status_lines(manager, state), as_json=as_json)
    return 0 if state.state is RunState.RUNNING else 1


def logs(*, follow: bool, lines: int, config: Path | None, system: bool = False) -> int:
    manager = chosen_manager(system=system)
    log = _log_of(manager, config)
    try:
        for line in tail.last_lines(log, lines):
            print(line, flush=follow)
        if follow:
            for line in tail.follow(log, time.sleep):
                print(line, flush=True)
    except FileNotFoundError:
        raise UsageError(f"there is no log at {log} yet", hint=manager.elsewhere(log)) from None
    except OSError as error:
        hint = "its user and root may read it: put sudo before it" if manager.account.name else ""
        raise OmlxError(f"{log} can't be read: {error.strerror}", hint=hint) from None
    return 0


def control(verb: str, words: str, *, system: bool, dry_run: bool) -> int:
    """Take the steps of `start`, `stop` or `reload`. Raises UsageError if nothing is installed."""
    manager = chosen_manager(system=system, dry_run=dry_run)
    if not manager.file.exists():
        more = " --system" if system else ""
        raise UsageError("no service is installed", hint=f"omlx-server service install{more}")
    steps = {"start": manager.start, "stop": manager.stop, "reload": manager.reload}[verb]()
    return take_or_describe(steps, words, dry_run=dry_run)


def _config_file(config: Path | None) -> Path:
    file = settings.find_config(config) or search_path()[0]
    return file.absolute()


def _settings_of_file(file: Path) -> settings.Loaded:
    """Return the file's settings alone: the service does not see this shell's variables."""
    if file.exists():
        return settings.load(file, {}, _NO_ENVIRONMENT)
    return settings.Loaded(settings.Settings(), file, MappingProxyType({}))


def _notes_on_shell_settings(file: Path) -> Iterator[str]:
    names = sorted(name for name in os.environ if name.startswith("OMLX_") and "__" in name)
    return (f"the service will not see {name}; write it to {file}" for name in names)


def _log_of(manager: Manager, config: Path | None) -> Path:
    """Return the log's path, even with a wrong config: then users look at the log."""
    with living_in(manager.home):
        log_file = ""
        with suppress(PlaceUnusable):  # others may not look at a service's home
            log_file = salvage(_config_file(config), {}, _NO_ENVIRONMENT).log_file
        return manager.home / log_file if log_file else manager.log_dir / LOG_NAME


def _moment(manager: Manager) -> str:
    return "boot" if manager.account.name else "login"


def take_or_describe(steps: Sequence[Step], *words: str, dry_run: bool) -> int:
    """Take the steps and print `words`; in a dry run print the steps alone."""
    if dry_run:
        words = ("Would, in this order:", *describe(steps))
    else:
        take(steps, run_program)
    print("\n".join(words))
    return 0


def _status_json(manager: Manager, state: ServiceState) -> dict[str, object]:
    return {
        "manager": manager.name,
        "state": state.state.value,
        "pid": state.pid,
        "last_exit": state.last_exit,
        "starts_at": _moment(manager),
        "user": manager.account.name or None,
        "says": state.says or None,
        "file": str(manager.file),
        "log": str(_log_of(manager, None)),
    }


def _status_lines(manager: Manager, state: ServiceState) -> Iterator[str]:
    pid = f", process {state.pid}" if state.pid else ""
    ended = "" if state.last_exit is None else f", last exit code {state.last_exit}"
    who = f", at boot, as {manager.account.name}" if manager.account.name else ""
    yield f"{state.state}{pid}{ended} ({manager.name}{who})"
    if state.says and state.state is RunState.RUNNING:
        yield state.says
    if state.state is RunState.NOT_INSTALLED:
        option = " --system" if manager.account.name else ""
        yield f"to have one: omlx-server service install{option}"
    elif state.state is RunState.FAILED or state.last_exit:
        yield f"why: omlx-server service logs; {manager.elsewhere(_log_of(manager, None))}"
