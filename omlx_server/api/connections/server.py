"""uvicorn with this server's own connections and shutdown.

The first SIGTERM or SIGINT gives running answers the grace time, the second ends them.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from omlx_server.api.connections.connection_timeouts import Connection, ConnectionLimits
from omlx_server.api.connections.connections import Connections

_KEEP_ALIVE_SECONDS = 75
# Bytes that the kernel buffers of an unread answer; its default may be megabytes.
_SEND_BUFFER = 256 * 2**10


class HttpServer(uvicorn.Server):
    """Serves one app on one bound socket. `exit_code` is 0 or that of `stop`."""

    def __init__(
        self,
        app: ASGIApp,
        grace_seconds: float,
        limits: ConnectionLimits,
        connections: Connections,
        on_stopping: Callable[[], None] = lambda: None,
        on_forced: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_stopping` is called when the shutdown begins, `on_forced` at each further signal."""
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=partial(Connection, limits=limits, connections=connections),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # any local client could give itself another address
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
        )
        self.change_grace(grace_seconds)
        self.exit_code = 0
        self._on_stopping = on_stopping
        self._on_forced = on_forced

    async def run_on(self, sock: socket.socket) -> None:
        """Serve on a bound socket until a signal or `stop`."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)  # connections inherit it
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        await self.serve(sockets=[sock])

    @property
    def under_way(self) -> int:
        return len(self.server_state.tasks)

    def change_grace(self, seconds: float) -> None:
        self.config.timeout_graceful_shutdown = max(1, round(seconds))

    def stop(self, exit_code: int) -> None:
        """Begin the shutdown."""
        self.exit_code = exit_code
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stopping()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `run_on`: uvicorn raises them again, as if the process had crashed."""
        yield

    def _on_signal(self) -> None:
        if self.should_exit:
            self.force_exit = True
            self._on_forced()
        self.should_exit = True
