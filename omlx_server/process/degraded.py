"""A server that only says what is wrong, until that is mended: better for whoever looks than a
process that ends again and again. Needs no model and no MLX.
"""

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import uvloop

from omlx_server.api.http.server import HttpServer
from omlx_server.api.own.degraded import DegradedApp, in_one_line
from omlx_server.errors import ConfigError, UsageError
from omlx_server.process.config_file import POLL_SECONDS, ConfigFile
from omlx_server.process.hangup import Hangup
from omlx_server.process.listen import listening, url_of
from omlx_server.process.logs import start_logging
from omlx_server.service.notify import Notifier, keep_alive
from omlx_server.settings.salvage import Salvaged

_log = logging.getLogger(__name__)
# What isn't in the config, such as a model that can't be fetched now, is tried again so often.
_RETRY_SECONDS = 60.0
_GRACE_SECONDS = 1.0


def serve_degraded(
    problem: UsageError, salvaged: Salvaged, config: Path | None, check: Callable[[], object]
) -> int:
    """Answer 503 until a signal ends it, which gives the exit code, or until `check()`, which is
    called when the file `config` has changed, raises no UsageError: then start over in place.

    Raises:
        UsageError: there is nowhere to listen.
    """
    try:
        start_logging("info", salvaged.log_file)
    except UsageError:  # which may be what is wrong
        start_logging("info", "")
    app = DegradedApp(problem)
    server = HttpServer(app, _GRACE_SECONDS)
    mended = uvloop.run(_serve(server, app, salvaged, config, check))
    if mended:
        _start_over()
    return server.exit_code


async def _serve(
    server: HttpServer,
    app: DegradedApp,
    salvaged: Salvaged,
    config: Path | None,
    check: Callable[[], object],
) -> bool:
    """Whether it should be tried again."""
    with listening(salvaged.host, salvaged.port, salvaged.uds) as sock:
        return await _serve_on(sock, server, app, config, check)


async def _serve_on(
    sock: socket.socket,
    server: HttpServer,
    app: DegradedApp,
    config: Path | None,
    check: Callable[[], object],
) -> bool:
    notifier = Notifier()
    _log.error("%s answers 503 to all requests: %s", url_of(sock), in_one_line(app.problem))
    notifier.ready(f"degraded: {in_one_line(app.problem)}")
    beating = asyncio.create_task(keep_alive(notifier, lambda: True))
    mending = asyncio.create_task(_until_mended(server, app, notifier, config, check))
    await server.run_on(sock)
    mended = mending.done() and mending.result()
    for task in (beating, mending):
        task.cancel()
    if not mended:
        notifier.stopping()
    return mended


async def _until_mended(
    server: HttpServer,
    app: DegradedApp,
    notifier: Notifier,
    config: Path | None,
    check: Callable[[], object],
) -> bool:
    file, hangup, began = ConfigFile(lambda: config), Hangup(), time.monotonic()
    while True:
        asked = await hangup.within(POLL_SECONDS)
        if asked and hangup.terminal_is_gone:
            server.stop(exit_code=0)
            return False
        if not (asked or file.has_changed()):
            if _is_worth_a_try(app.problem) and time.monotonic() - began > _RETRY_SECONDS:
                break
            continue
        try:
            check()
        except UsageError as error:
            app.problem = error
            _log.error("still wrong: %s", in_one_line(error))
            notifier.ready(f"degraded: {in_one_line(error)}")
        else:
            break
    server.stop(exit_code=0)
    return True


def _is_worth_a_try(problem: UsageError) -> bool:
    return not isinstance(problem, ConfigError)


def _start_over() -> NoReturn:
    """The same program anew, in the same process: the manager notices no failure."""
    _log.info("the configuration has changed: starting again")
    Notifier().starting_over()
    logging.shutdown()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
