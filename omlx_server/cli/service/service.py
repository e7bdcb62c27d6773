"""`omlx-server service`: the server as a background service, managed by launchd or systemd."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from omlx_server import settings
from omlx_server.cli.shell.output import show, show_json
from omlx_server.errors import OmlxError, UsageError
from omlx_server.service import runner
from omlx_server.service.environment import environment_of
from omlx_server.service.managers import Manager, manager_here
from omlx_server.service.service import LOG_NAME, service_of
from omlx_server.service.state import ServiceState, State
from omlx_server.service.steps import Remove, Step, Write, told
from omlx_server.service.tail import follow as following
from omlx_server.service.tail import last_lines
from omlx_server.settings.salvage import salvage
from omlx_server.settings.types import expanded

_EMPTY_CONFIG = "# Settings of omlx-server. `omlx-server config show` lists them all.\n"
# It may hold API keys one day.
_CONFIG_MODE = 0o600
_NO_ENVIRONMENT: MappingProxyType[str, str] = MappingProxyType({})


def install(*, config: Path | None, dry_run: bool) -> int:
    manager = _manager()
    file = _config_file(config)
    environment = environment_of(os.environ, home=expanded("~"), here=Path.cwd())
    service = service_of(
        _settings_in(file),
        python=Path(sys.executable),
        home=expanded("~"),
        log_dir=manager.log_dir,
        environment=environment,
    )
    for note in (*_settings_of_this_shell(file), *environment.left):
        print(f"note: {note}", file=sys.stderr)
    first = [] if file.exists() else [Write(file, _EMPTY_CONFIG, _CONFIG_MODE)]
    steps = manager.install(service, None if dry_run else runner.run_program)
    is_new = not manager.file.exists()
    try:
        done = _take([*first, *steps], dry_run=dry_run)
    except OmlxError:
        if is_new:
            _take_back(manager, first)
        else:
            print(f"note: {manager.file} is written anew and stays", file=sys.stderr)
        raise
    if done:
        print(f"Installed as {manager.file}, with the settings of {file}.")
        print("It starts now and at every login: `omlx-server service status` tells how it is.")
        if manager.hint:
            print(manager.hint)
    return 0


def _take_back(manager: Manager, written: list[Write]) -> None:
    """Half of a service would be started one day."""
    steps: list[Step] = [Remove(step.path) for step in written]
    with suppress(OmlxError):
        _take([*steps, *manager.uninstall()], dry_run=False)


def uninstall(*, dry_run: bool) -> int:
    manager = _manager()
    if not manager.file.exists():
        print("No service is installed.")
        return 0
    if not (dry_run or manager.answers(runner.run_program)):
        _take([Remove(manager.file)], dry_run=False)
        print(f"{manager.file} is removed. No {manager.name} answers here, so nothing was stopped.")
        return 0
    if _take(manager.uninstall(), dry_run=dry_run):
        print(f"Stopped, and {manager.file} is removed.")
    return 0


def start(*, dry_run: bool) -> int:
    if _take(_installed().start(), dry_run=dry_run):
        print("Starting: `omlx-server service status` tells how it is.")
    return 0


def stop(*, dry_run: bool) -> int:
    if _take(_installed().stop(), dry_run=dry_run):
        print("Stopped.")
    return 0


def reload(*, dry_run: bool) -> int:
    if _take(_installed().reload(), dry_run=dry_run):
        print("Asked to look at its config: `omlx-server service logs` tells what became of it.")
    return 0


def status(*, as_json: bool) -> int:
    manager = _manager()
    state = manager.state(runner.run_program)
    if as_json:
        show_json(_document(manager, state))
    else:
        show("\n".join(_in_words(manager, state)))
    return 0 if state.state is State.RUNNING else 1


def logs(*, follow: bool, lines: int, config: Path | None) -> int:
    manager = _manager()
    log = _log_of(manager, config)
    try:
        for line in last_lines(log, lines):
            show(line, flush=follow)
        if follow:
            for line in following(log, time.sleep):
                show(line, flush=True)
    except FileNotFoundError:
        raise UsageError(f"there is no log at {log} yet", hint=manager.elsewhere(log)) from None
    except OSError as error:
        raise OmlxError(f"{log} can't be read: {error.strerror}") from None
    return 0


# --- The service and its settings ----------------------------------------------------------------


def _manager() -> Manager:
    return manager_here(expanded("~"))


def _installed() -> Manager:
    manager = _manager()
    if not manager.file.exists():
        raise UsageError("no service is installed", hint="omlx-server service install")
    return manager


def _config_file(config: Path | None) -> Path:
    """As the service will be told; it may not exist."""
    found = settings.find_config(config) or settings.search_path()[1]
    return found.absolute()


def _settings_in(file: Path) -> settings.Loaded:
    """What the service will find in its config: it has no environment of ours."""
    if file.exists():
        return settings.load(file, {}, _NO_ENVIRONMENT)
    return settings.Loaded(settings.Settings(), file, MappingProxyType({}))


def _settings_of_this_shell(file: Path) -> Iterator[str]:
    names = sorted(name for name in os.environ if name.startswith("OMLX_") and "__" in name)
    return (f"the service will not see {name}; write it to {file}" for name in names)


def _log_of(manager: Manager, config: Path | None) -> Path:
    """Readable of a config that is wrong, too: that is when the log is looked at."""
    chosen = salvage(_config_file(config), {}, _NO_ENVIRONMENT).log_file
    return expanded("~") / chosen if chosen else manager.log_dir / LOG_NAME


# --- Doing and telling ---------------------------------------------------------------------------


def _take(steps: Sequence[Step], *, dry_run: bool) -> bool:
    """Whether something was done."""
    if dry_run:
        print("Would, in this order:")
        print("\n".join(told(steps)))
        return False
    runner.take(steps, runner.run_program)
    return True


def _document(manager: Manager, state: ServiceState) -> dict[str, object]:
    return {
        "manager": manager.name,
        "state": state.state.value,
        "pid": state.pid,
        "last_exit": state.last_exit,
        "says": state.says or None,
        "file": str(manager.file),
        "log": str(_log_of(manager, None)),
    }


def _in_words(manager: Manager, state: ServiceState) -> Iterator[str]:
    pid = f", process {state.pid}" if state.pid else ""
    ended = "" if state.last_exit is None else f", last exit code {state.last_exit}"
    yield f"{state.state}{pid}{ended} ({manager.name})"
    if state.says and state.state is State.RUNNING:
        yield state.says
    if state.state is State.NOT_INSTALLED:
        yield "to have one: omlx-server service install"
    elif state.state is State.FAILED or state.last_exit:
        yield f"why: omlx-server service logs; {manager.elsewhere(_log_of(manager, None))}"
