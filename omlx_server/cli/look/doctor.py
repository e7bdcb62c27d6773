"""`omlx-server doctor`: runs the checks of omlx_server/doctor/. Defaults replace a wrong config."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from omlx_server.cli.launch.clients import CLIENTS
from omlx_server.cli.server_client.http import NoAnswer, own_server
from omlx_server.cli.service.system import chosen_manager
from omlx_server.cli.shell.options import check_model_overrides, load_settings, overrides_of
from omlx_server.cli.shell.output import show_json
from omlx_server.core.cluster.hosts import Host
from omlx_server.core.experts.budget import budget_of
from omlx_server.doctor import memory, network, software, storage
from omlx_server.doctor.finding import Finding, Level, fail, ok, warn
from omlx_server.doctor.software import Device
from omlx_server.doctor.stress import report
from omlx_server.errors import ConfigError, OmlxError
from omlx_server.models import catalogue, layout, locate
from omlx_server.models.damage import damage_in
from omlx_server.models.locate import Located
from omlx_server.process.ports import next_free
from omlx_server.service.steps import run_program
from omlx_server.settings import Loaded, Settings, find_problems
from omlx_server.settings.advice import unknown_models, warnings
from omlx_server.settings.types import own_place
from omlx_server.store.secret import SECRET
from omlx_server.wiring.cluster.options import gathering_options, hosts_of

_PROBE = (sys.executable, "-P", "-m", "omlx_server.doctor.probe")
_PROBE_SECONDS = 120
_LEVELS = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL"}
_COLORS = {Level.OK: "32", Level.WARN: "33", Level.FAIL: "31"}


def run(
    *,
    as_json: bool,
    config: Path | None,
    sets: Sequence[str],
    flags: Mapping[str, str | None] | None = None,
) -> int:
    """Print each finding as it comes; return 1 if one fails. `flags` are settings by key."""
    findings = []
    for finding in _check_all(config, sets, flags):
        findings.append(finding)
        if not as_json:
            print(line_of(finding), flush=True)
    failed = any(finding.level is Level.FAIL for finding in findings)
    if as_json:
        rows = [asdict(finding) | {"fix": finding.fix or None} for finding in findings]
        show_json({"ok": not failed, "findings": rows})
    return 1 if failed else 0


def line_of(finding: Finding, name_width: int = 8) -> str:
    level = _LEVELS[finding.level]
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        level = f"\x1b[{_COLORS[finding.level]}m{level}\x1b[0m"
    fix = f"\n{' ' * (name_width + 7)}fix: {finding.fix}" if finding.fix else ""
    return f"{level}  {finding.what:<{name_width}} {' '.join(finding.says.splitlines())}{fix}"


def _check_all(
    config: Path | None, sets: Sequence[str], flags: Mapping[str, str | None] | None
) -> Generator[Finding, None, None]:
    # A check yields its findings, and returns what later checks need.
    loaded = yield from _check_config(config, sets, flags)
    settings = loaded.settings
    version = sys.version_info
    yield software.python((version.major, version.minor, version.micro), sys.prefix)
    device = yield from _check_device()
    name = settings.models.default or catalogue.STARTER.name
    path = yield from _check_model(name, settings, is_cpu=device is None or device.is_cpu)
    hosts, hosts_problem = _read_hosts(settings)
    if device is not None:
        yield software.blas(device)
        yield memory.limit(settings, device)
        yield memory.wired(settings, device)
        if path is not None:
            limit = memory.limit_of(settings, device)
            nbytes = layout.weight_bytes(path)
            overrides, sizes = settings.overrides_of([name]), layout.expert_sizes(path)
            experts = overrides.experts, overrides.experts_memory
            if budget := budget_of(nbytes, sizes, limit, *experts):
                nbytes = budget.nbytes
            yield memory.weights(name, nbytes, limit, max(1, len(hosts)))
    yield from _check_storage(settings)
    yield _check_address(settings)
    yield _check_service()
    if (last_test := report.unfinished(own_place(report.PLACE))) is not None:
        yield last_test
    programs = {client: program for client in CLIENTS if (program := shutil.which(client))}
    yield software.clients(list(CLIENTS), programs)
    if hosts_problem is not None:
        yield hosts_problem
    if hosts:
        yield from _check_cluster(name, path, loaded, hosts)


def _check_config(
    config: Path | None, sets: Sequence[str], flags: Mapping[str, str | None] | None
) -> Generator[Finding, None, Loaded]:
    try:
        loaded = load_settings(config, sets, flags)
        check_model_overrides(loaded.settings)
    except ConfigError as first:
        errors = find_problems(config, overrides_of(sets, flags))
        for error in errors or [first]:
            yield fail("config", error.message, error.hint or "omlx-server config edit")
        return Loaded(Settings(), None, {})
    models = loaded.settings.models
    problems = [*warnings(loaded), *unknown_models(models, _known_names(loaded.settings))]
    for problem in problems:
        yield warn("config", problem, "omlx-server config edit")
    if not problems:
        yield ok("config", str(loaded.source or "no file: the defaults and the environment"))
    if loaded.source is not None and loaded.source.parent.name == "omlx_server":
        yield storage.directory("config", storage.look_at(loaded.source.parent))
        yield storage.private_file("config", storage.look_at(loaded.source))
    return loaded


def _known_names(settings: Settings) -> set[str]:
    models, draft_model = settings.models, settings.speculation.draft_model
    names = set(catalogue.NAMES).union(*(model.names for model in locate.installed(models)))
    for name in (models.default, models.embedding, models.reranker, draft_model):
        names |= {name, Path(name).name}  # a path's last word is a name
    return names


def _check_device() -> Generator[Finding, None, Device | None]:
    try:
        process = subprocess.run(
            _PROBE, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
        code, out, error_text = process.returncode, process.stdout, process.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        code, out, error_text = 1, "", str(error)
    device = software.read_device(code, out)
    yield software.mlx(device, code, error_text)
    return device


def _check_model(
    name: str, settings: Settings, *, is_cpu: bool
) -> Generator[Finding, None, Path | None]:
    problem = fix = ""
    path: Path | None = None
    try:
        path = _find_model(name, settings, is_cpu=is_cpu)
        if path is not None:
            problem = storage.unreadable(path) or damage_in(path)
    except OmlxError as error:
        problem, fix = error.message, error.hint
    except OSError as error:
        problem = str(error)
    yield storage.model(name, path, problem, fix)
    return None if problem else path


def _find_model(name: str, settings: Settings, *, is_cpu: bool) -> Path | None:
    own_model = catalogue.find(name)
    if own_model is None:
        located = locate.find_or_expect(name, settings.models)
        return located.path if located is not None else None
    name = own_model.directory_name("f32" if is_cpu else "8bit")
    path = locate.bundled_directory(name, Path.is_dir, settings.models)
    if not path.is_dir():
        return None
    layout.check(path)
    return path


def _check_storage(settings: Settings) -> Iterator[Finding]:
    cache = settings.cache
    yield storage.directory("models", storage.look_at(settings.models.dirs[0]), private=False)
    yield storage.disk(cache, storage.free_bytes(cache.cold_dir))
    if cache.has_cold:
        yield storage.directory("cache", storage.look_at(cache.cold_dir))
        secret = storage.look_at(cache.cold_dir / SECRET)
        if secret.mode is not None:
            yield storage.private_file("secret", secret)


def _check_address(settings: Settings) -> Finding:
    host, port = settings.server.host, settings.server.port
    if settings.server.uds:
        path = Path(settings.server.uds)
        what, where, problem = "socket", str(path), network.try_socket(path)
        fix = "another path: omlx-server config set server.uds PATH"
    elif port == 0:
        return ok("port", "any free one (server.port is 0)")
    else:
        what, where, problem = "port", f"{host} port {port}", network.try_port(host, port)
        fix = fix_of_port(host, port) if problem else ""
    version = _served_version(settings) if problem else None
    return network.listener(what, where, problem, version, fix)


def fix_of_port(host: str, port: int) -> str:
    return f"another port: omlx-server config set server.port {next_free(host, port) or 0}"


def _served_version(settings: Settings) -> str | None:
    try:
        answer = own_server(settings).get("/").json_object or {}
    except NoAnswer:
        return None
    return str(answer.get("version")) if answer.get("server") == "omlx_server" else None


def _read_hosts(settings: Settings) -> tuple[list[Host], Finding | None]:
    try:
        return hosts_of(settings), None
    except ConfigError as error:
        fix = "docs/cluster.md says what it holds; mlx.distributed_config writes one"
        return [], fail("hosts", error.message, fix)


def _check_cluster(
    name: str, path: Path | None, loaded: Loaded, hosts: Sequence[Host]
) -> Iterator[Finding]:
    from omlx_server.doctor.cluster import check, findings

    settings = loaded.settings
    yield findings.hosts(Path(settings.cluster.hosts), hosts)
    if path is None:
        yield fail("group", f"{name} is not on this machine", f"omlx-server pull {name}")
        return
    known_as = path.resolve().name if name.startswith(locate.PATH_STARTS) else name
    options = gathering_options(loaded, hosts)
    yield from check.checks(options, settings.cluster.backend, Located(path, (known_as,)))


def _check_service() -> Finding:
    try:
        manager = chosen_manager(system=False)
        state = manager.state(run_program)
    except (OmlxError, OSError, RuntimeError):
        return software.service("", None)
    return software.service(state.state.value, state.last_exit, manager.account.name)
