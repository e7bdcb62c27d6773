"""uvicorn with our own connections (`connection.py`) and our own manners at the end.

The first SIGTERM or SIGINT closes the door and lets running answers finish within the grace; the
second ends at once. The exit code says whether all went well.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from omlx_server.api.http.connection import DEFAULT_LIMITS, Connection, ConnectionLimits

_KEEP_ALIVE_SECONDS = 75
# What the kernel keeps of an answer that is not read; by itself it would take megabytes of each.
_SEND_BUFFER = 256 * 2**10


class HttpServer(uvicorn.Server):
    """Serves one app on one bound socket."""

    def __init__(
        self,
        app: ASGIApp,
        grace_seconds: float,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        on_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_stopping` is called when the door closes, before running answers are waited for."""
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=partial(Connection, limits=limits),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
        )
        self.change_grace(grace_seconds)
        self.exit_code = 0
        self._on_stopping = on_stopping

    async def run_on(self, sock: socket.socket) -> None:
        """Serve until told to stop."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)  # connections inherit it
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        await self.serve(sockets=[sock])

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self.server_state.tasks

    def change_grace(self, seconds: float) -> None:
        """How long running answers may take at the end."""
        self.config.timeout_graceful_shutdown = max(1, round(seconds))

    def stop(self, exit_code: int) -> None:
        """Drain and end with this exit code."""
        self.exit_code = exit_code
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stopping()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again at the end, and so exit as if it had crashed."""
        yield

    def _on_signal(self) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
