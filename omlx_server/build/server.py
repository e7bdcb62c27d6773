"""A server from its start to its end."""

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing

import uvloop

from omlx_server.api.app import create_app
from omlx_server.api.connection import ConnectionLimits
from omlx_server.api.served import ServedModel, ServedModels
from omlx_server.api.server import HttpServer
from omlx_server.build.context import make_context
from omlx_server.build.engine import make_engine
from omlx_server.build.listen import bind, url_of
from omlx_server.build.logs import start_logging
from omlx_server.build.models import find_model
from omlx_server.build.readers import FoundReaders, ReaderModels, find_readers, refuse_to_chat
from omlx_server.build.served import make_served
from omlx_server.build.tracing import find_tracer
from omlx_server.compute import FAST_BLAS, device
from omlx_server.errors import Unavailable
from omlx_server.models.locate import Located
from omlx_server.models.progress import Progress
from omlx_server.service.notify import Notifier, keep_alive
from omlx_server.settings import Loaded, Settings, warnings

_log = logging.getLogger(__name__)
# Of the time that a service manager gives us to end; requests have had theirs before.
_DRAIN_SECONDS = 10.0


def serve(
    loaded: Loaded, model: str, *, progress: Progress, ready: Callable[[str, str], None]
) -> int:
    """Serve one model until a signal ends it. Returns the exit code.

    `ready(url, model)` is called when the first request may come.
    """
    settings = loaded.settings
    _start_logging(settings)
    for warning in warnings(loaded):
        _log.warning("%s", warning)
    with closing(bind(settings.server.host, settings.server.port)) as sock:
        located = find_model(model, settings, progress)
        refuse_to_chat(located)
        found = find_readers(settings, progress)
        code = uvloop.run(_serve(settings, located, found, sock, ready))
    _leave(code)
    return code


async def _serve(
    settings: Settings,
    located: Located,
    found: FoundReaders,
    sock: socket.socket,
    ready: Callable[[str, str], None],
) -> int:
    """Order matters: the door opens while the model loads, and answers 503 until it is there."""
    failure, notifier, tracer = _Failure(), Notifier(), find_tracer(settings)
    readers = ReaderModels(found, located)
    engine = make_engine(located, settings, failure.report, readers)
    await engine.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.stop, _drain_seconds(settings))
        served = await asyncio.to_thread(make_served, located, engine, settings)
        stack.push_async_callback(asyncio.to_thread, served.grammars.close)
        others = await asyncio.to_thread(readers.serve, engine)
        if tracer is not None:
            stack.push_async_callback(asyncio.to_thread, tracer.shutdown)
        app = create_app(make_context(ServedModels([served], others), settings, tracer))
        grace = settings.server.shutdown_grace_seconds
        server = HttpServer(app, grace, _connection_limits(settings), notifier.stopping)
        failure.ends(server)
        announcing = asyncio.create_task(_announce(served, sock, ready, notifier))
        beating = asyncio.create_task(
            keep_alive(notifier, lambda: engine.status.alive(time.monotonic()))
        )
        await server.run_on(sock)
        announcing.cancel()
        beating.cancel()
    return server.exit_code


class _Failure:
    """The engine's, which ends the server; it may come before there is one."""

    def __init__(self) -> None:
        self._happened = False
        self._server: HttpServer | None = None

    def report(self, problem: str) -> None:
        _log.critical("the engine has failed: %s", problem)
        self._happened = True
        if self._server is not None:
            self._server.stop(exit_code=1)

    def ends(self, server: HttpServer) -> None:
        self._server = server
        if self._happened:
            server.stop(exit_code=1)


def _drain_seconds(settings: Settings) -> float:
    return min(_DRAIN_SECONDS, settings.server.shutdown_grace_seconds)


async def _announce(
    served: ServedModel,
    sock: socket.socket,
    ready: Callable[[str, str], None],
    notifier: Notifier,
) -> None:
    try:
        await served.engine.ready()
    except Unavailable:
        return  # on_failure ends the server and says why
    name = served.names[0]
    _log.info("%s is loaded and warm", name)
    ready(url_of(sock), name)
    notifier.ready(f"serves {name} at {url_of(sock)}")
    await asyncio.to_thread(served.grammars.warm)


def _leave(code: int) -> None:
    """End the process here: all is written and closed, and native threads of MLX that meet the
    interpreter's own end have been seen to abort it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _start_logging(settings: Settings) -> None:
    log = settings.logging
    start_logging(log.level, log.file, log.format)
    _log.info("MLX computes on the %s", device.name())
    if device.is_cpu() and FAST_BLAS is None:
        _log.warning(
            "OpenBLAS was not found, so prompts are read up to 30 times slower; "
            "on Debian and Ubuntu: apt-get install libopenblas0-pthread"
        )


def _connection_limits(settings: Settings) -> ConnectionLimits:
    server = settings.server
    return ConnectionLimits(
        header_bytes=server.max_header_bytes,
        header_seconds=server.header_timeout_seconds,
        body_seconds=server.body_timeout_seconds,
        write_seconds=server.write_timeout_seconds,
    )
