"""Runs a server until its process ends."""

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import NoReturn

import uvloop

from omlx_server import clock
from omlx_server.api.activity.activity import Activity
from omlx_server.api.app import create_app
from omlx_server.api.connections.server import HttpServer
from omlx_server.api.context import ApiContext
from omlx_server.api.http.host import reachable_names
from omlx_server.api.models.served import ServedModels
from omlx_server.compute import FAST_BLAS
from omlx_server.compute.hardware import device
from omlx_server.engine.client.machine_watch import MachineWatch
from omlx_server.errors import OmlxError
from omlx_server.models.progress import ProgressListener
from omlx_server.process.apply import HttpSettingsApplier, ModelSettingsApplier, watch_config
from omlx_server.process.cluster.leader import cluster_reporter, make_cluster, watch_cluster
from omlx_server.process.keep_awake import KeepAwake, find_program
from omlx_server.process.limits import connection_limits, raise_descriptors
from omlx_server.process.listen import url_of
from omlx_server.process.tracing import find_tracer
from omlx_server.service.notify import Notifier, keep_alive
from omlx_server.settings import Loaded
from omlx_server.settings.advice import sources_in_words
from omlx_server.wiring.context import make_context
from omlx_server.wiring.encoders import find_encoders, refuse_to_chat
from omlx_server.wiring.fetcher import DiskFetcher
from omlx_server.wiring.freed import Freed
from omlx_server.wiring.known import KnownModels
from omlx_server.wiring.model_directory import find_model
from omlx_server.wiring.model_factory import InstanceFactory
from omlx_server.wiring.open_models import begin, open_models

_log = logging.getLogger(__name__)
Ready = Callable[[str, str], None]

# How long a thread may keep the GIL while others wait. With Python's own 5 ms the waits of the mlx
# thread and the event loop add up to seconds.
_SWITCH_SECONDS = 0.0005
# After a second signal the process ends within so many seconds, whatever its threads do.
_FORCED_SECONDS = 5.0


def serve(
    loaded: Loaded,
    model: str,
    sock: socket.socket,
    *,
    progress: ProgressListener,
    ready: Ready,
) -> int:
    """Serve `model` on a bound socket. Return the exit code for `leave`. `ready(url, model)` is
    called when the first request may come. Raises UsageError."""
    settings = loaded.settings
    sys.setswitchinterval(_SWITCH_SECONDS)
    _log.info("in force: %s", sources_in_words(loaded))
    _log_device()
    awake = KeepAwake(find_program())
    awake.look(clock.now(), has_work=settings.process.keep_awake == "busy")
    located = find_model(model, settings, progress)
    refuse_to_chat(located)
    catalogue = KnownModels(settings, located, find_encoders(settings, progress))
    return uvloop.run(_serve(loaded, catalogue, sock, ready, awake))


async def _serve(
    loaded: Loaded, catalogue: KnownModels, sock: socket.socket, ready: Ready, awake: KeepAwake
) -> int:
    """Run the server. It listens while models load; requests wait for them."""
    settings, tracer = loaded.settings, find_tracer(loaded.settings)
    failure, notifier, stopping = _FailureExit(), Notifier(), threading.Event()
    async with AsyncExitStack() as stack:
        cluster = make_cluster(loaded, stack)
        instances = InstanceFactory(settings, cluster=cluster)
        opened = await open_models(instances, catalogue, failure.report, stack)
        watch_cluster(cluster, opened.engine, sock, instances.drain, stopping.is_set)
        models = opened.models
        if tracer is not None:
            stack.push_async_callback(asyncio.to_thread, tracer.shutdown)
        fetcher, report = DiskFetcher(catalogue), cluster_reporter(cluster)
        descriptors = raise_descriptors()
        context = make_context(models, settings, tracer, fetcher, report, descriptors)
        app = create_app(context)
        on_stopping = partial(_note_stopping, notifier, context.activity, stopping)
        grace, limits = settings.server.shutdown_grace_seconds, connection_limits(settings.server)
        connections = context.traffic.connections
        server = HttpServer(app, grace, limits, connections, on_stopping, _leave_after_a_while)
        failure.stop_on_failure(server)
        url = url_of(sock)  # now, since a signal may close the socket
        load = _load_first_model(models, catalogue, failure, url, ready, notifier)
        loading = asyncio.create_task(load)
        loading.add_done_callback(failure.report_if_crashed)
        await _log_own_urls(context, url, settings.server.host)
        http = HttpSettingsApplier(app, server)
        model_settings = ModelSettingsApplier(instances, catalogue, models, opened.engine.call)
        config_watch = asyncio.create_task(watch_config(loaded, http, model_settings.apply))
        beat = keep_alive(notifier, lambda: models.vitals.alive(clock.now()))
        heartbeat = asyncio.create_task(beat)
        machine = MachineWatch(opened.engine, instances.account, instances.watches_machine)
        memory_watches = _watch_memory(server, context.activity, machine)
        time_watches = _watch_time(awake, instances, loading, context.activity)
        await server.run_on(sock)
        for task in (loading, config_watch, heartbeat, *memory_watches, *time_watches):
            task.cancel()
    return server.exit_code


def _watch_memory(
    server: HttpServer, activity: Activity, machine: MachineWatch
) -> list[asyncio.Task[None]]:
    def is_idle() -> bool:  # listeners to the server's activity give it no work
        return server.under_way <= activity.live.listeners

    freed = Freed(is_idle)  # gives memory back to the system
    return [asyncio.create_task(each.watch()) for each in (freed, activity.memory, machine)]


def _watch_time(
    awake: KeepAwake, instances: InstanceFactory, loading: asyncio.Task[None], activity: Activity
) -> list[asyncio.Task[None]]:
    """Let the clock tick, and keep the machine awake if it has work."""

    def has_work() -> bool:
        is_busy = not loading.done() or bool(activity.recent.under_way())
        return is_busy and instances.settings.process.keep_awake == "busy"

    return [asyncio.create_task(each) for each in (clock.tick(), awake.watch(has_work))]


def _note_stopping(notifier: Notifier, activity: Activity, stopping: threading.Event) -> None:
    stopping.set()
    notifier.stopping()
    activity.live.close()


async def _log_own_urls(context: ApiContext, url: str, host: str) -> None:
    """Log the URLs for other machines, if any."""
    if context.own_names is None:
        return
    names, port = reachable_names(await context.own_names.look_up(), host), url.rpartition(":")[2]
    urls = [f"http://{name}:{port}/v1" for name in names]
    if urls:
        _log.info("with an API key, other machines reach it at %s", ", ".join(urls))


async def _load_first_model(
    models: ServedModels,
    catalogue: KnownModels,
    failure: "_FailureExit",
    url: str,
    ready: Ready,
    notifier: Notifier,
) -> None:
    try:
        await begin(models, catalogue)
    except OmlxError as error:
        failure.report_at_start(error.message)
        return
    name = catalogue.first()[0].names[0]
    _log.info("%s is loaded and warm", name)
    ready(url, name)
    notifier.ready(f"serves {name} at {url}")


class _FailureExit:
    """Stops the server with exit code 1 after a failure."""

    def __init__(self) -> None:
        self._happened = False
        self._server: HttpServer | None = None

    def report(self, problem: str) -> None:
        self._stop_server(f"the engine has failed: {problem}")

    def report_at_start(self, problem: str) -> None:
        self._stop_server(f"the server could not start: {problem}")

    def _stop_server(self, message: str) -> None:
        _log.critical("%s", message)
        self._happened = True
        if self._server is not None:
            self._server.stop(exit_code=1)

    def report_if_crashed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.report_at_start(repr(task.exception()))

    def stop_on_failure(self, server: HttpServer) -> None:
        self._server = server
        if self._happened:
            server.stop(exit_code=1)


def _leave_after_a_while() -> None:
    timer = threading.Timer(_FORCED_SECONDS, leave, (0,))
    timer.daemon = True
    timer.start()


def leave(code: int) -> NoReturn:
    """End the process at once: MLX's threads may abort while the interpreter shuts down."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _log_device() -> None:
    _log.info("MLX computes on the %s", device.name())
    if device.is_cpu() and FAST_BLAS is None:
        _log.warning(
            "OpenBLAS was not found, so prompts are read up to 30 times slower; "
            "on Debian and Ubuntu: apt-get install libopenblas0-pthread"
        )
