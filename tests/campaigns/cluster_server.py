"""A server of several ranks that is started again when its process has ended, as a service manager
would; and what is done to its ranks."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import httpx
import psutil

from tests.api.harness import ADMIN_TOKEN, UNPROBED, ServerProcess, samples, wait_for
from tests.campaigns.replica_fleet import free_port
from tests.cluster.servers import hosts_file, is_gone, is_rank, number_of, ranks

END_SECONDS = 10.0
"""The ranks of a rank 0 that was killed must have ended by themselves after so many seconds."""

_SETTINGS = ("cache.block_tokens=16", "cache.cold_write_through=true", UNPROBED)
_POLL_SECONDS = 0.005
_SHOWN = 600
_BEGINS, _IS_THERE = "the server starts anew", "MLX computes on"
_COLD = 'omlx_cache_hit_tokens_total{tier="cold"}'


class SupervisedServer:
    """`size` ranks of this machine, with a thread that starts rank 0 again. `problems` says what
    went wrong, in a line each."""

    def __init__(self, model: str, settings: Sequence[str], directory: Path, size: int) -> None:
        hosts = f"cluster.hosts={hosts_file(directory, size)}"
        self._model = model
        self._settings = (*settings, *_SETTINGS, hosts)
        self._directory = directory
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.problems: list[str] = []
        self.starts: list[tuple[float, float]] = []
        """From when to when the process loaded its modules after it started itself anew, in times
        of time.monotonic(). On a busy machine that takes long, and nobody can be answered."""
        self._may_end = False
        self._is_over = threading.Event()
        self._server = self._started()
        self._thread = threading.Thread(target=self._supervise)
        self._thread.start()

    def _started(self) -> ServerProcess:
        place, model = self._directory, self._model
        return ServerProcess(model, place, self._settings, port=self._port, forked=False)

    def _supervise(self) -> None:
        while not self._is_over.wait(_POLL_SECONDS):
            if not self._server.running:
                if not self._may_end:
                    self.problems.append(f"the server has ended: {self._server.log[-_SHOWN:]}")
                self._may_end = False
                self._look_through_log()
                self._server = self._started()

    def _look_through_log(self) -> None:
        log = self._server.log
        self.starts += _starts(log)
        if "Traceback" in log:
            first = max(0, log.index("Traceback") - _SHOWN)
            self.problems.append(f"a traceback: {log[first : first + 3 * _SHOWN]}")

    def wait_ready(self) -> None:
        self._server.wait_ready()

    # -- the log -------------------------------------------------------------------------

    @property
    def mark(self) -> tuple[ServerProcess, int]:
        """Where the log ends now."""
        return self._server, len(self._server.log)

    def wait_for_lines(self, words: str, count: int, mark: tuple[ServerProcess, int]) -> None:
        """Wait until the log has so many lines with these words behind the mark."""

        def look() -> bool:
            server, start = self._server, mark[1]
            return server.log[start if server is mark[0] else 0 :].count(words) >= count

        wait_for(look)

    # -- its ranks -----------------------------------------------------------------------

    def process_of(self, rank: int) -> psutil.Process:
        """The process of a rank, when it is there."""

        def look() -> psutil.Process | None:
            with suppress(psutil.NoSuchProcess):
                if rank == 0:
                    return psutil.Process(self._server.pid)
                found = [one for one in ranks(self._server) if number_of(one) == rank]
                return found[0] if found else None
            return None

        return wait_for(look)

    def kill_rank(self, rank: int) -> None:
        """Kill a rank. Where it is rank 0, see that the others end by themselves."""
        process = self.process_of(rank)
        if rank:
            process.kill()
            return
        others = ranks(self._server)
        self._may_end = True
        process.kill()
        threading.Thread(target=self._see_the_end, args=(others,)).start()

    def _see_the_end(self, others: Sequence[psutil.Process]) -> None:
        try:
            wait_for(lambda: all(map(is_gone, others)), END_SECONDS)
        except AssertionError:
            self.problems.append(f"ranks outlived rank 0 by {END_SECONDS:.0f} s")

    def signal_rank(self, process: psutil.Process, number: signal.Signals) -> None:
        """Send a signal to a process that may be gone."""
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)

    # -- what it says --------------------------------------------------------------------

    def cold_tokens(self) -> int:
        """The prompt tokens that came from cold tiers since it has started, or started anew."""
        headers = {"x-admin-token": ADMIN_TOKEN}
        told = httpx.get(f"{self.url}/metrics", headers=headers, timeout=60).text
        return int(samples(told).get(_COLD, 0))

    # -- the end -------------------------------------------------------------------------

    def stop(self) -> None:
        """End it as a service manager does."""
        self._end_supervision()
        self._server.terminate()
        code = self._server.wait()
        if code:
            self.problems.append(f"the server ended with {code}")

    def kill(self) -> int:
        """For the end, however it went. Returns how many ranks were still there after 10 s."""
        self._end_supervision()
        self._look_through_log()
        self._server.kill()
        with suppress(AssertionError):
            wait_for(lambda: not self._rest(), END_SECONDS)
        rest = self._rest()
        for process in rest:
            process.kill()
        return len(rest)

    def _end_supervision(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _rest(self) -> list[psutil.Process]:
        """The ranks that are there, whoever their parent is."""
        found = list[psutil.Process]()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                own = any(str(self._directory) in word for word in process.cmdline())
                if own and is_rank(process) and not is_gone(process):
                    found.append(process)
        return found


def _starts(log: str) -> Iterator[tuple[float, float]]:
    began, offset = 0.0, time.time() - time.monotonic()
    for line in log.splitlines():
        if line.startswith("{") and (_BEGINS in line or _IS_THERE in line):
            at = datetime.fromisoformat(json.loads(line)["time"]).timestamp() - offset
            if _BEGINS in line:
                began = at
            elif began:
                yield began, at
