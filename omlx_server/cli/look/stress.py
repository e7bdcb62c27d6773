"""`omlx-server doctor --model NAME --stress MINUTES`: asks, runs the phases against a server that
ends with this process, and prints the report."""

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from omlx_server.cli.look.doctor import line_of
from omlx_server.cli.look.selftest import ReportOutput, raise_exit
from omlx_server.cli.look.status import samples_of
from omlx_server.cli.look.stress_load import StressClients, StressPlan
from omlx_server.cli.server_client.http import NoAnswer, ServerClient, server_at
from omlx_server.cli.shell import stdin
from omlx_server.cli.shell.ending import on_sigterm
from omlx_server.cli.shell.options import check_model_overrides, load_settings
from omlx_server.cli.shell.output import say, show_json
from omlx_server.doctor.stress.report import PLACE, PhaseFigures, StressReport
from omlx_server.errors import OmlxError
from omlx_server.settings import Settings
from omlx_server.settings.types import own_place
from omlx_server.settings.values import plain

PLAN = StressPlan()
_QUESTION = "This may reboot a Mac with a faulty driver. Save your work. Go on?"
# Settings that keep the user's files, ports and other machines out of the test.
_APART = (
    "server.host=127.0.0.1 server.port=0 server.uds= cluster.hosts= logging.file= "
    "responses.store=memory cache.remote= cache.cold_min_free_disk=0"
)
_SECTIONS = ("memory", "cache", "kv_cache", "scheduler", "speculation", "context")
_PROGRAM = (sys.executable, "-P", "-m", "omlx_server")
_READY = re.compile(r"omlx-server is ready: (\S+?)(?:/v1)? serves (\S+)")
_LAST_CHARACTERS = 300  # of the log
_TAKER = (sys.executable, "-P", "-m", "omlx_server.doctor.stress.taker")
_LOAD, _TWO, _LONGEST, _FOUR = "load", "two streams", "longest prompt", "four clients"
_PHASES = (_TWO, _LONGEST, _FOUR)
_CLIENTS = {_TWO: 2, _FOUR: 4}
_POLL_SECONDS = 0.5
_SAY_SECONDS = 15.0
_READY_SECONDS = 30.0
_LOAD_SECONDS = 600.0
_NAME_WIDTH = 14
_IN_MLX = ("weights", "live", "blocks", "checkpoints", "pending", "step", "pool")
_COUNTERS = {
    "omlx_cache_evictions_total": "evictions",
    "omlx_device_errors_total": "device_errors",
    "omlx_stalls_total": "stalls",
}


def run(
    model: str,
    minutes: float,
    output: ReportOutput,
    config: Path | None,
    sets: Sequence[str],
    *,
    yes: bool,
) -> int:
    """Run the phases; return 1 if one fails. Raises UsageError."""
    settings, file = load_settings(config, sets).settings, output.file()
    check_model_overrides(settings)
    from omlx_server.doctor.selftest.subject import find_subject

    name = find_subject(model, settings).names[0]
    if not yes and not stdin.confirm(_QUESTION, "--yes runs the test without asking"):
        print("Nothing was run.")
        return 1
    files = [own_place(PLACE), *([file] if file else [])]
    say(f"the report is in {files[-1]}, also after a reboot")
    with tempfile.TemporaryDirectory(prefix="omlx-stress-") as temporary, on_sigterm(raise_exit):
        cold = f"cache.cold_dir={temporary}/kv", f"cache.cold_cache_max_bytes={PLAN.cold_bytes}B"
        sets = [*sets, *_APART.split(), *cold, f"cache.hot_cache_max_bytes={PLAN.hot_bytes}B"]
        in_force = load_settings(config, sets).settings
        report = StressReport(files, _head(name, in_force, minutes))
        server = StressServer(model, config, sets, Path(temporary) / "log")
        try:
            StressPhases(server, PLAN, report).run(minutes)
        except (KeyboardInterrupt, SystemExit):
            report.write(None, interrupted=True)
            raise
        finally:
            server.end()
        document = report.write(None)
    if output.to_stdout:
        show_json(document)
    return 0 if document["ok"] else 1


def _head(name: str, settings: Settings, minutes: float) -> dict[str, Any]:
    """Return the part of the report that is known before the test."""
    from omlx_server.doctor.shareable import shareable

    shown = {
        section: {key: plain(value) for key, value in values}
        for section, values in settings
        if section in _SECTIONS
    }
    mac = ""
    with suppress(OSError):  # elsewhere there is no such program
        command = ["/usr/sbin/sysctl", "-n", "hw.model"]
        mac = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    kind, about = "omlx-server stress test", {"name": name}
    return shareable(kind, model=about, settings=shown, mac=mac, minutes=minutes)


class StressServer:
    """`omlx-server serve MODEL`, not started yet. It logs to a file."""

    def __init__(self, model: str, config: Path | None, sets: Sequence[str], log: Path) -> None:
        self._words = ["serve", model, "--until-stdin-ends"]
        self._words += ["--config", str(config)] if config else []
        self._words += [word for assignment in sets for word in ("--set", assignment)]
        keys = load_settings(config, sets).settings.auth.api_keys
        self._key = next((key.reveal() for key in keys), "")
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self._process.poll() if self._process else 0

    def start(self) -> tuple[ServerClient, str]:
        """Wait until it serves; return a client and the model's name. Raises OmlxError."""
        command, pipe = [*_PROGRAM, *self._words], subprocess.PIPE
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, process_group=0
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if ready := _READY.match(line):
                return server_at(ready[1], self._key), ready[2]
        code, text = self._process.wait(), self._log.read_text(errors="replace")
        raise OmlxError(f"the server ended with code {code}", hint=text.strip()[-_LAST_CHARACTERS:])

    def end(self) -> None:
        if self._process is not None:
            with self._process as process:
                process.kill()


class StressPhases:
    """The test of one model. The server is started anew for the phase after its end."""

    def __init__(self, server: StressServer, plan: StressPlan, report: StressReport) -> None:
        self._process, self._report = server, report
        self._clients = StressClients(plan)
        self._end = 0.0

    def run(self, minutes: float) -> None:
        self._phase(_LOAD, _LOAD_SECONDS)
        if self._clients.context == 0:  # the server did not start
            return
        self._end = time.monotonic() + 60 * minutes
        for name in _PHASES:
            self._phase(name, 60 * minutes / len(_PHASES))

    def _phase(self, name: str, seconds: float) -> None:
        self._report.write(name)
        begun, figures = time.monotonic(), PhaseFigures()
        try:
            if self._process.exit_code is not None:
                self._clients.server, self._clients.model = self._process.start()
            before, most = self._counters(), self._clients.plan.most_taken
            with _taking_memory(most, figures) if name == _FOUR else nullcontext():
                self._run_clients(name, seconds, figures)
            figures.is_ready = self._is_ready()
            for counter, value in self._counters().items():
                setattr(figures, counter, value - before[counter])
        except OmlxError as error:  # the server did not start
            figures.is_ready = False
            say(f"{name}: {error.message}{f'; {error.hint}' if error.hint else ''}")
        figures.exit_code = self._process.exit_code
        figures.seconds = round(time.monotonic() - begun, 1)
        say(line_of(self._report.add(name, figures), _NAME_WIDTH))

    def _run_clients(self, name: str, seconds: float, figures: PhaseFigures) -> None:
        clients, said_at = self._clients, time.monotonic()
        clients.figures, clients.end = figures, said_at + seconds
        if name == _LOAD:
            clients.learn()
            clients.ask(0, clients.tokens_of(0))
        elif name == _LONGEST:
            clients.start(clients.ask_longest)
        else:
            clients.start(*(partial(clients.ask_in_turn, 5 * i) for i in range(_CLIENTS[name])))
        while clients.are_asking and self._process.exit_code is None:
            time.sleep(_POLL_SECONDS)
            self._look_at_memory(figures)
            if time.monotonic() - said_at > _SAY_SECONDS:
                said_at = time.monotonic()
                left = max(0.0, self._end - said_at) / 60
                faults = figures.fault or "nothing has failed"
                say(f"{name}: {left:.1f} min left in all; {figures.counts}; {faults}")
        clients.stop()

    def _look_at_memory(self, figures: PhaseFigures) -> None:
        with suppress(NoAnswer):
            memory = (self._clients.server.get("/health").json_object or {}).get("memory") or {}
            held = sum(memory.get(name, 0) for name in _IN_MLX)
            figures.peak_bytes = max(figures.peak_bytes, held)
            figures.resident_bytes = max(figures.resident_bytes, memory.get("resident", 0))

    def _is_ready(self) -> bool:
        """Return whether the server is ready again; one that reloads its model gets some time."""
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline and self._process.exit_code is None:
            with suppress(NoAnswer):
                if self._clients.server.get("/health/ready").status == HTTPStatus.OK:
                    return True
            time.sleep(_POLL_SECONDS)
        return False

    def _counters(self) -> Counter[str]:
        """Return the server's counters by their names in PhaseFigures. Empty without an answer."""
        counters = Counter[str]()
        with suppress(NoAnswer):
            text = self._clients.server.get("/metrics").body.decode(errors="replace")
            for (name, _), value in samples_of(text).items():
                if name in _COUNTERS:
                    counters[_COUNTERS[name]] += int(value)
        return counters


@contextmanager
def _taking_memory(most: int, figures: PhaseFigures) -> Iterator[None]:
    """Run the program that takes memory; it would end by itself with this process."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*_TAKER, str(most)], stdin=pipe, stdout=pipe, text=True, process_group=0
    ) as taker:
        try:
            yield
            figures.taken_bytes = int(taker.communicate(timeout=_READY_SECONDS)[0] or 0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            taker.kill()
