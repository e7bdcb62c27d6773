"""Settings applied to what runs: the log, HTTP, the models and the names they go by."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from omlx_server.api.app import App
from omlx_server.api.context import ConfigState
from omlx_server.api.http.server import HttpServer
from omlx_server.api.models.served import ServedModels
from omlx_server.process.config_file import ConfigFile
from omlx_server.process.live_models import change_lanes
from omlx_server.process.logs import change_logging
from omlx_server.process.reload import Applier, Reloader, watch
from omlx_server.settings import Loaded, find_config
from omlx_server.settings.reload import Changes
from omlx_server.wiring.changed import changed_model
from omlx_server.wiring.context import changed_context
from omlx_server.wiring.known import KnownModels
from omlx_server.wiring.model_factory import Lanes
from omlx_server.wiring.open_models import load_pinned
from omlx_server.wiring.override_names import check_overrides

OnMlx = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs something small on the mlx thread, between two steps."""


async def watch_config(loaded: Loaded, http: "HttpSide", apply_to_models: Applier) -> None:
    """Apply changes of the config for as long as the server runs."""
    appliers = apply_to_models, http.apply, apply_to_log
    file = ConfigFile(lambda: find_config(loaded.named))
    await watch(Reloader(loaded, check_overrides, appliers, http.tell), file, http.end)


async def apply_to_log(changed: Changes) -> None:
    if changed.touch("logging"):
        log = changed.in_force.logging
        change_logging(log.level, log.format)


class HttpSide:
    """The app and its server. asyncio thread."""

    def __init__(self, app: App, server: HttpServer) -> None:
        self._app = app
        self._server = server

    async def apply(self, changed: Changes) -> None:
        """What requests find that come from now on."""
        if changed.touch("server", "auth"):
            settings = changed.in_force
            self._app.change(changed_context(self._app.state.context, settings))
            self._server.change_grace(settings.server.shutdown_grace_seconds)

    def tell(self, state: ConfigState) -> None:
        """For /health."""
        context = self._app.state.context
        if context.config != state:
            self._app.change(replace(context, config=state))

    def end(self) -> None:
        """As by SIGTERM."""
        self._server.stop(exit_code=0)


class ModelsSide:
    """Both sides of all models, and what is known of those that are not loaded. asyncio thread."""

    def __init__(
        self, lanes: Lanes, known: KnownModels, models: ServedModels, on_mlx: OnMlx
    ) -> None:
        self._lanes = lanes
        self._known = known
        self._models = models
        self._on_mlx = on_mlx
        self._pinning: asyncio.Task[None] | None = None

    async def apply(self, changed: Changes) -> None:
        """Raises ConfigError as `change_lanes`, and Unavailable; nothing has changed then."""
        settings = changed.in_force
        if changed.applied:
            await self._on_mlx(partial(change_lanes, self._lanes, settings))
        if changed.touch("models"):
            self._known.change(settings)
            for known in self._known.known():
                self._models.pool.wants(known.wanted)
            self._load_pinned()
        if changed.touch("sampling", "context"):
            self._models.pool.change(partial(changed_model, settings=settings))

    def _load_pinned(self) -> None:
        """Nobody waits for it. Those that are there already take no time."""
        if self._pinning is not None:
            self._pinning.cancel()
        self._pinning = asyncio.create_task(load_pinned(self._models, self._known))
