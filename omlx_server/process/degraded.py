"""A server that answers only with what is wrong until that is mended. Needs no model and no MLX."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import uvloop

from omlx_server.api.connections.connections import Connections
from omlx_server.api.connections.server import HttpServer
from omlx_server.api.own.degraded import DegradedApp, in_one_line
from omlx_server.errors import ConfigError, UsageError
from omlx_server.process.config_file import POLL_SECONDS, ConfigFile, Hangup
from omlx_server.process.limits import connection_limits, raise_descriptors
from omlx_server.process.listen import listening, url_of
from omlx_server.process.logs import start_logging
from omlx_server.service.notify import Notifier, keep_alive
from omlx_server.settings.layers import Salvaged
from omlx_server.settings.sections import ServerSettings

_log = logging.getLogger(__name__)
# Retry of a problem outside the config, such as a failed download.
_RETRY_SECONDS = 60.0
_GRACE_SECONDS = 1.0


def serve_degraded(
    problem: UsageError, salvaged: Salvaged, config: Path | None, check: Callable[[], object]
) -> int:
    """Answer 503 (/health/live: 200) until a signal ends the server; return its exit code.

    Once `check()`, on SIGHUP or a change of `config`, raises no UsageError, the program starts
    anew; after `_RETRY_SECONDS` for a `problem` outside the config. Raises UsageError.
    """
    try:
        start_logging("info", salvaged.log_file)
    except UsageError:  # it may be the problem itself
        start_logging("info", "")
    degraded = _Degraded(problem, config, check)
    if uvloop.run(degraded.serve(salvaged)):
        _start_anew()
    return degraded.server.exit_code


class _Degraded:
    """The server that answers 503 until `check()` raises no error."""

    def __init__(
        self, problem: UsageError, config: Path | None, check: Callable[[], object]
    ) -> None:
        self._app = DegradedApp(problem)
        self._config = config
        self._check = check
        self._notifier = Notifier()
        self.server = HttpServer(
            self._app,
            _GRACE_SECONDS,
            connection_limits(ServerSettings()),
            Connections(raise_descriptors()),
        )

    async def serve(self, salvaged: Salvaged) -> bool:
        """Serve until stopped. Return whether the program should start anew."""
        with listening(salvaged.host, salvaged.port, salvaged.uds) as sock:
            _log.error("%s answers 503 to all requests: %s", url_of(sock), self._report_problem())
            heartbeat = asyncio.create_task(keep_alive(self._notifier, lambda: True))
            repair = asyncio.create_task(self._wait_until_mended())
            await self.server.run_on(sock)
            is_mended = repair.done() and repair.result()
            for task in (heartbeat, repair):
                task.cancel()
            if not is_mended:
                self._notifier.stopping()
            return is_mended

    async def _wait_until_mended(self) -> bool:
        file, hangup, began = ConfigFile(lambda: self._config), Hangup(), time.monotonic()
        while True:
            has_signal = await hangup.comes_within(POLL_SECONDS)
            if has_signal and hangup.terminal_is_gone:
                self.server.stop(exit_code=0)
                return False
            if not (has_signal or file.has_changed()):
                is_beyond_config = not isinstance(self._app.problem, ConfigError)
                if is_beyond_config and time.monotonic() - began > _RETRY_SECONDS:
                    break
                continue
            try:
                self._check()
                break
            except UsageError as error:
                self._app.problem = error
                _log.error("still wrong: %s", self._report_problem())
        self.server.stop(exit_code=0)
        return True

    def _report_problem(self) -> str:
        problem = in_one_line(self._app.problem)
        self._notifier.ready(f"degraded: {problem}")
        return problem


def _start_anew() -> NoReturn:
    """Run the same command line anew in this process."""
    _log.info("the configuration has changed: starting again")
    Notifier().starting_over()
    logging.shutdown()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
