"""Makes a server's cluster from its settings, and handles its loss.

MLX has one group of ranks per process. After a loss, running answers end with an error, and the
process starts anew in place, with the same socket.
"""

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import psutil

from omlx_server.core.cluster.state import ClusterReport
from omlx_server.core.crash import Crash, guarded
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.errors import ConfigError
from omlx_server.process.listen import INHERITED
from omlx_server.settings import Loaded
from omlx_server.wiring.cluster.leading import LeadingCluster
from omlx_server.wiring.cluster.options import NO_PORT, gathering_options, hosts_of

_log = logging.getLogger(__name__)
# Environment variable with the number of restarts in place.
_RESTARTS_VARIABLE = "OMLX_RESTARTS"
# Most seconds for the ranks' writes to their cold tiers at the end.
_DRAIN_SECONDS = 5.0
# Time for errors to reach clients.
_LAST_WORDS_SECONDS = 1.5
# Least time between restarts.
_LEAST_LIFE_SECONDS = 5.0
_BEGAN_AT = time.monotonic()
# Most seconds for rank 0's writes to its cold tier before a restart.
_RESTART_DRAIN_SECONDS = 3.0
_STOP_POLL_SECONDS = 0.1


def make_cluster(loaded: Loaded, stack: AsyncExitStack) -> LeadingCluster | None:
    """Return the cluster of a server, which ends with `stack`. Raises ConfigError."""
    hosts = hosts_of(loaded.settings)
    if not hosts:
        return None
    options = gathering_options(loaded, hosts)
    if options.secret and not options.port:
        raise ConfigError(NO_PORT, hint="omlx-server config set cluster.port 7000")
    cluster = LeadingCluster(options, loaded.settings.cluster.backend)
    grace = loaded.settings.server.shutdown_grace_seconds
    stack.callback(cluster.gathering.close, min(_DRAIN_SECONDS, grace))
    return cluster


def cluster_reporter(cluster: LeadingCluster | None) -> Callable[[], ClusterReport | None]:
    """Return a function that reports on the ranks. Any thread."""
    return lambda: None if cluster is None else ClusterReport(cluster.states, _count_restarts())


def watch_cluster(
    cluster: LeadingCluster | None,
    engine: AsyncEngine,
    sock: socket.socket,
    drain: Callable[[float], None],
    is_stopping: Callable[[], bool],
) -> None:
    """Have a lost cluster start the process anew with `sock`. Call before ranks are started."""
    if cluster is None:
        return
    loop = asyncio.get_running_loop()
    _collect_former_ranks()

    def lost(problem: str) -> None:
        loop.call_soon_threadsafe(engine.fail_everything, problem)
        args = (sock, drain, is_stopping)
        threading.Thread(target=_start_anew, args=args, daemon=True).start()

    cluster.gathering.on_lost = lost


def _count_restarts() -> int:
    text = os.environ.get(_RESTARTS_VARIABLE, "")
    return int(text) if text.isdigit() else 0


def _collect_former_ranks() -> None:
    """Reap the ranks of before a restart: they are still children."""
    children = psutil.Process().children()
    if children:
        threading.Thread(target=psutil.wait_procs, args=(children,), daemon=True).start()


def _start_anew(
    sock: socket.socket, drain: Callable[[float], None], is_stopping: Callable[[], bool]
) -> None:
    """Replace this process; end it if that fails."""
    crash = guarded(_replace_process, sock, drain, is_stopping)
    if isinstance(crash, Crash):
        _log.critical("the server can't start anew", exc_info=crash.error)
        os._exit(1)


def _replace_process(
    sock: socket.socket, drain: Callable[[float], None], is_stopping: Callable[[], bool]
) -> None:
    restart_at = max(time.monotonic() + _LAST_WORDS_SECONDS, _BEGAN_AT + _LEAST_LIFE_SECONDS)
    drain(_RESTART_DRAIN_SECONDS)
    while (seconds_left := restart_at - time.monotonic()) > 0 and not is_stopping():
        time.sleep(min(seconds_left, _STOP_POLL_SECONDS))
    if is_stopping():
        return
    _log.warning("the server starts anew, to bring the ranks together again")
    logging.shutdown()
    with suppress(OSError):  # nobody may read them any more
        sys.stdout.flush()
        sys.stderr.flush()
    os.set_inheritable(sock.fileno(), True)
    os.environ[_RESTARTS_VARIABLE] = str(_count_restarts() + 1)
    os.environ[INHERITED] = str(sock.fileno())
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
