"""`omlx-server doctor`: looks at the machine and has the findings made (omlx_server/doctor/).

Reads only. With a config that is wrong it goes on with the defaults, since that is what is left.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

from omlx_server.cli.server_client.address import first_key, local_url
from omlx_server.cli.server_client.http import NoAnswer, asked
from omlx_server.cli.shell.options import load_settings
from omlx_server.cli.shell.output import show, show_json
from omlx_server.cli.talk.launch import CLIENTS
from omlx_server.doctor import memory, names, network, service, software, storage
from omlx_server.doctor.finding import Finding, Level, fail, ok, warn
from omlx_server.doctor.software import Device
from omlx_server.errors import ConfigError, OmlxError
from omlx_server.models import catalogue, layout, locate
from omlx_server.models.bundled.embedded import MINILM
from omlx_server.models.damage import damage_in
from omlx_server.models.hub.hub import HUB
from omlx_server.service.managers import manager_here
from omlx_server.service.runner import run_program
from omlx_server.settings import Settings, warnings
from omlx_server.settings.sections import Models
from omlx_server.settings.types import expanded
from omlx_server.store.secret import SECRET
from omlx_server.wiring.override_names import check_overrides

_PROBE = (sys.executable, "-m", "omlx_server.doctor.probe")
_PROBE_SECONDS = 120
_STARTER = "starter"
_VARIANTS = {True: "f32", False: "8bit"}
_SIGNS = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL"}
_COLORS = {Level.OK: "32", Level.WARN: "33", Level.FAIL: "31"}


def run(*, as_json: bool, config: Path | None, sets: Sequence[str]) -> int:
    findings = []
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for finding in _findings(config, sets):
        findings.append(finding)
        if not as_json:
            show(_line(finding, coloured=coloured), flush=True)
    failed = any(finding.level is Level.FAIL for finding in findings)
    if as_json:
        rows = [
            {"level": f.level.value, "what": f.what, "says": f.says, "fix": f.fix or None}
            for f in findings
        ]
        show_json({"ok": not failed, "findings": rows})
    return 1 if failed else 0


def _line(finding: Finding, *, coloured: bool) -> str:
    sign = _SIGNS[finding.level]
    if coloured:
        sign = f"\x1b[{_COLORS[finding.level]}m{sign}\x1b[0m"
    fix = f"\n               fix: {finding.fix}" if finding.fix else ""
    return f"{sign}  {finding.what:<8} {' '.join(finding.says.splitlines())}{fix}"


def _findings(config: Path | None, sets: Sequence[str]) -> Generator[Finding, None, None]:
    """In the order in which things are needed."""
    settings = yield from _config(config, sets)
    version = sys.version_info
    yield software.python((version.major, version.minor, version.micro), sys.prefix)
    found = yield from _device()
    name = settings.models.default or _STARTER
    path = yield from _model(name, settings, is_cpu=found is None or found.is_cpu)
    if found is not None:
        yield software.blas(found)
        yield memory.limit(settings, found)
        if path is not None:
            limit = memory.limit_of(settings, found)
            yield memory.weights(name, storage.weight_bytes(path), limit)
    yield from _storage(settings)
    yield _socket(settings) if settings.server.uds else _port(settings)
    yield _service()
    places = {client: where for client in CLIENTS if (where := shutil.which(client))}
    yield software.clients(list(CLIENTS), places)


# --- The parts -----------------------------------------------------------------------------------


def _config(config: Path | None, sets: Sequence[str]) -> Generator[Finding, None, Settings]:
    """The settings in force, or the defaults where those are wrong."""
    try:
        loaded = load_settings(config, sets)
        check_overrides(loaded.settings)
    except ConfigError as error:
        yield fail("config", error.message, error.hint or "omlx-server config edit")
        return Settings()
    models = loaded.settings.models
    problems = [*warnings(loaded), *names.strangers(models, _known(models))]
    for problem in problems:
        yield warn("config", problem, "omlx-server config edit")
    if not problems:
        yield ok("config", str(loaded.source or "no file: the defaults and the environment"))
    if loaded.source is not None and loaded.source.parent.name == "omlx_server":
        yield storage.directory("config", storage.look_at(loaded.source.parent))
        yield storage.private_file("config", storage.look_at(loaded.source))
    return loaded.settings


def _known(models: Models) -> set[str]:
    """The names of models that are here, or come when a server is started."""
    known = {n for model in locate.installed(models.dirs, models.use_hf_cache) for n in model.names}
    known |= {n for row in catalogue.CATALOGUE for n in (row.name, row.full_name)}
    known |= {MINILM.name, MINILM.full_name}
    for name in (models.default, models.embedding, models.reranker):
        known |= {name, Path(name).name}  # a path's last word is a name
    return known


def _device() -> Generator[Finding, None, Device | None]:
    try:
        done = subprocess.run(
            _PROBE, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
        code, out, said = done.returncode, done.stdout, done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        code, out, said = 1, "", str(error)
    found = software.read_device(code, out)
    yield software.mlx(found, code, said)
    return found


def _model(name: str, settings: Settings, *, is_cpu: bool) -> Generator[Finding, None, Path | None]:
    """Where the default model lies, if it is whole and can be read."""
    problem = fix = ""
    path: Path | None = None
    try:
        path = _path_of(name, settings, is_cpu=is_cpu)
        if path is not None:
            problem = storage.unreadable(path) or damage_in(path)
    except OmlxError as error:
        problem, fix = error.message, error.hint
    except OSError as error:
        problem = str(error)
    yield storage.model(name, path, problem, fix)
    return None if problem else path


def _path_of(name: str, settings: Settings, *, is_cpu: bool) -> Path | None:
    """None for what would be downloaded. Raises ModelUnavailable for what is broken, and for what
    there is not."""
    models, path = settings.models, expanded(name)
    row = catalogue.find(name)
    if row is not None:
        path = models.dirs[0] / row.directory_name(_VARIANTS[is_cpu])
    elif not (name.startswith(locate.PATH_STARTS) or (path / "config.json").is_file()):
        found = locate.find_installed(name, models.dirs, models.use_hf_cache)
        if found is None and not locate.REPO_ID.fullmatch(name):
            raise locate.unknown(name, models.dirs, models.use_hf_cache, HUB)
        return found.path if found is not None else None
    if row is not None and not path.is_dir():
        return None
    layout.check(path)
    return path


def _storage(settings: Settings) -> Iterator[Finding]:
    cache = settings.cache
    yield storage.directory("models", storage.look_at(settings.models.dirs[0]), private=False)
    yield storage.disk(cache, storage.free_bytes(cache.cold_dir))
    if cache.has_cold:
        yield storage.directory("cache", storage.look_at(cache.cold_dir))
        secret = storage.look_at(cache.cold_dir / SECRET)
        if secret.mode is not None:
            yield storage.private_file("secret", secret)


def _port(settings: Settings) -> Finding:
    host, number = settings.server.host, settings.server.port
    if number == 0:
        return ok("port", "any free one (server.port is 0)")
    problem = network.try_port(host, number)
    return network.port(host, number, problem, _served(settings) if problem else None)


def _socket(settings: Settings) -> Finding:
    path = Path(settings.server.uds)
    problem = network.try_socket(path)
    return network.unix_socket(path, problem, _served(settings) if problem else None)


def _served(settings: Settings) -> str | None:
    """The version of our own server at the address, if it is ours."""
    try:
        said = asked(local_url(settings), first_key(settings)).get("/").json()
    except NoAnswer:
        return None
    ours = isinstance(said, Mapping) and said.get("server") == "omlx_server"
    return str(said.get("version")) if ours else None


def _service() -> Finding:
    try:
        state = manager_here(expanded("~")).state(run_program)
    except (OmlxError, OSError, RuntimeError):
        return service.service("", None)
    return service.service(state.state.value, state.last_exit)
