"""Runs the phases of the stress test in turn against a server of its own."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from http import HTTPStatus

from omlx_server.cli.look.doctor import line_of
from omlx_server.cli.look.status import samples_of
from omlx_server.cli.look.stress_load import StressLoad, StressPlan, StressPrompts
from omlx_server.cli.look.stress_server import StressServer
from omlx_server.cli.server_client.http import NoAnswer, ServerClient
from omlx_server.cli.shell.output import say
from omlx_server.doctor.stress.phase import PhaseFigures
from omlx_server.doctor.stress.report import StressReport
from omlx_server.errors import OmlxError

_TAKER = (sys.executable, "-P", "-m", "omlx_server.doctor.stress.taker")
_LOAD, _TWO, _LONGEST, _FOUR = "load", "two streams", "longest prompt", "four clients"
_PHASES = (_TWO, _LONGEST, _FOUR)
_CLIENTS = {_TWO: 2, _FOUR: 4}
_POLL_SECONDS = 0.5
_SAY_SECONDS = 15.0
_READY_SECONDS = 30.0
_LOAD_SECONDS = 600.0
_NAME_WIDTH = 14
_OUTSIDE_MLX = (
    "limit",
    "grammars",
    "token_ids",
    "responses",
    "bodies",
    "resident",
    "drift",
    "machine",
    "pressure",
)
_COUNTERS = {
    "omlx_cache_evictions_total": "evictions",
    "omlx_device_errors_total": "device_errors",
    "omlx_stalls_total": "stalls",
}


class StressPhases:
    """The test of one model. The server is started anew for the phase after its end."""

    def __init__(self, server: StressServer, plan: StressPlan, report: StressReport) -> None:
        self._process = server
        self._most_taken = plan.most_taken
        self._report = report
        self._end = 0.0
        self._prompts = StressPrompts(plan)
        self._client = ServerClient("")
        self._model = ""

    def run(self, minutes: float) -> None:
        self._phase(_LOAD, _LOAD_SECONDS)
        if self._prompts.context == 0:  # the server did not start
            return
        self._end = time.monotonic() + 60 * minutes
        for name in _PHASES:
            self._phase(name, 60 * minutes / len(_PHASES))

    def _phase(self, name: str, seconds: float) -> None:
        self._report.write(name)
        begun, figures = time.monotonic(), PhaseFigures()
        try:
            if self._process.exit_code is not None:
                self._client, self._model = self._process.start()
            before = self._counters()
            with _taking_memory(self._most_taken, figures) if name == _FOUR else nullcontext():
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
        end = time.monotonic() + seconds
        load = StressLoad(self._client, self._model, self._prompts, figures, end)
        if name == _LOAD:
            self._prompts.learn(self._client, self._model)
            load.ask(0, self._prompts.tokens_of(0))
        elif name == _LONGEST:
            load.start(load.ask_longest)
        else:
            load.start(*(partial(load.ask_in_turn, 5 * client) for client in range(_CLIENTS[name])))
        said_at = time.monotonic()
        while load.is_running and self._process.exit_code is None:
            time.sleep(_POLL_SECONDS)
            self._look_at_memory(figures)
            if time.monotonic() - said_at > _SAY_SECONDS:
                said_at = time.monotonic()
                left = max(0.0, self._end - said_at) / 60
                faults = figures.fault or "nothing has failed"
                say(f"{name}: {left:.1f} min left in all; {figures.counts}; {faults}")
        load.stop()

    def _look_at_memory(self, figures: PhaseFigures) -> None:
        with suppress(NoAnswer):
            memory = (self._client.get("/health").json_object or {}).get("memory") or {}
            held = sum(size for name, size in memory.items() if name not in _OUTSIDE_MLX)
            figures.peak_bytes = max(figures.peak_bytes, held)
            figures.resident_bytes = max(figures.resident_bytes, memory.get("resident", 0))

    def _is_ready(self) -> bool:
        """Return whether the server is ready again; one that reloads its model gets some time."""
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline and self._process.exit_code is None:
            with suppress(NoAnswer):
                if self._client.get("/health/ready").status == HTTPStatus.OK:
                    return True
            time.sleep(_POLL_SECONDS)
        return False

    def _counters(self) -> Counter[str]:
        """Return the server's counters by their names in PhaseFigures. Empty without an answer."""
        counters = Counter[str]()
        with suppress(NoAnswer):
            text = self._client.get("/metrics").body.decode(errors="replace")
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
