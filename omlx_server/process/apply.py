"""Applies changed settings to a running server: log, HTTP side and models."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from omlx_server.api.app import App
from omlx_server.api.connections.server import HttpServer
from omlx_server.api.context import ConfigState
from omlx_server.api.models.served import ServedModels
from omlx_server.api.settings_editor import SettingsEditor
from omlx_server.compute.hardware import device
from omlx_server.core.memory.ledger import in_words
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import ConfigError
from omlx_server.process.config_file import ConfigFile
from omlx_server.process.logs import change_logging
from omlx_server.process.reload import Applier, NotYet, Reloader, watch
from omlx_server.process.settings_editor import ConfigEditor
from omlx_server.service.supervised import START_AGAIN, is_started_again
from omlx_server.settings import Loaded, Settings, find_config
from omlx_server.settings.changes import Changes
from omlx_server.wiring.context import changed_context
from omlx_server.wiring.known import KnownModels
from omlx_server.wiring.memory import Shares, cache_budget, shares_of
from omlx_server.wiring.model_factory import InstanceFactory, adapter_limits, limits
from omlx_server.wiring.open_models import load_pinned
from omlx_server.wiring.overrides.templates import check_all
from omlx_server.wiring.served import changed_model


def change_instances(instances: InstanceFactory, settings: Settings) -> None:
    """Set new limits for all models, later ones too. Raises ConfigError if the loaded weights are
    more than the new memory.limit, NotYet if a request would not fit; nothing has changed then."""
    cache, cold = settings.cache, instances.cold
    shares = shares_of(settings, cold=cache.has_cold)
    _refuse_too_little_memory(instances, shares)
    if cold is not None and cache.hot_cache_only:
        _give_up_cold_tier(instances)
    elif cold is not None:
        daily = cache.cold_writes_per_day
        cold.change(cache.cold_cache_max_bytes, shares.queue, cache.cold_min_free_disk, daily)
    instances.settings, instances.shares = settings, shares
    instances.account.limit, instances.account.queue = shares.limit, shares.queue
    device.limit_memory(pool=shares.pool, wired=shares.wired)
    for instance in instances.at_work():
        _change_instance(instance, shares, settings)


def _refuse_too_little_memory(instances: InstanceFactory, shares: Shares) -> None:
    account = instances.account
    if shares.limit >= account.limit:
        return
    if account.weights > shares.limit:
        raise ConfigError(
            f"memory.limit {in_words(shares.limit)} is less than the weights of the models that "
            f"are loaded ({in_words(account.weights)})"
        )
    for instance in instances.at_work():
        guard = instance.watch.guard.under(shares.limit, shares.queue) if instance.watch else None
        if guard is not None and not instance.scheduler.all_fit(guard):
            raise NotYet(
                f"memory.limit {in_words(shares.limit)} is too little for requests at work",
                hint="it applies when they have ended",
            )


def _give_up_cold_tier(instances: InstanceFactory) -> None:
    """Give up the cold tier and its queue; its directory stays."""
    for instance in instances.at_work():
        instance.tiers.leave_cold()
    instances.pins.leave_cold()
    cold, instances.cold = instances.cold, None
    if cold is not None:
        cold.close(0)


def _change_instance(instance: ModelInstance, shares: Shares, settings: Settings) -> None:
    bounds = limits(settings, instance.names, instance.chunks)
    instance.change_limits(bounds, write_through=settings.cache.cold_write_through)
    instance.adapters.limits = adapter_limits(settings)
    if instance.watch is None:
        return
    share, planner = instance.watch.share, instance.watch.planner
    instance.watch.guard.change(shares.limit, shares.queue)
    budget_of = partial(cache_budget, shares, planner, limits=bounds, settings=settings)
    share.set_weights_and_budget(share.weights, budget_of)


CallOnMlxThread = Callable[[Callable[[], None]], Awaitable[None]]


async def watch_config(
    loaded: Loaded, http: "HttpSettingsApplier", apply_to_models: Applier
) -> None:
    """Reload the config on changes and SIGHUP, until cancelled, and let admin routes edit it."""
    appliers = apply_to_models, http.apply, apply_to_log
    reloader = Reloader(loaded, check_all, appliers, http.show_state)
    restart = partial(http.stop_server, START_AGAIN) if is_started_again() else None
    http.offer_editor(ConfigEditor(loaded, reloader, restart))
    file = ConfigFile(lambda: find_config(loaded.named))
    await watch(reloader, file, http.stop_server)


async def apply_to_log(changed: Changes) -> None:
    if changed.touch("logging"):
        log = changed.in_force.logging
        change_logging(log.level, log.format)


class HttpSettingsApplier:
    """Applies settings to the app and its HTTP server. asyncio thread."""

    def __init__(self, app: App, server: HttpServer) -> None:
        self._app = app
        self._server = server

    async def apply(self, changed: Changes) -> None:
        """Apply the sections `server` and `auth` to new requests."""
        if changed.touch("server", "auth"):
            settings = changed.in_force
            self._app.change(changed_context(self._app.state.context, settings))
            self._server.change_grace(settings.server.shutdown_grace_seconds)

    def show_state(self, state: ConfigState) -> None:
        """Let /health report `state`."""
        context = self._app.state.context
        if context.config != state:
            self._app.change(replace(context, config=state))

    def offer_editor(self, editor: SettingsEditor) -> None:
        self._app.change(replace(self._app.state.context, settings=editor))

    def stop_server(self, exit_code: int = 0) -> None:
        """Stop the server as SIGTERM does."""
        self._server.stop(exit_code)


@dataclass(slots=True, eq=False)
class ModelSettingsApplier:
    """Applies settings to loaded models and to the catalogue. asyncio thread."""

    instances: InstanceFactory
    known: KnownModels
    models: ServedModels
    on_mlx: CallOnMlxThread
    _pinning: asyncio.Task[None] | None = field(default=None, init=False)

    async def apply(self, changed: Changes) -> None:
        """Apply settings of models; nothing has changed if it raises. Raises as `change_instances`,
        and Unavailable."""
        settings = changed.in_force
        if changed.applied:
            await self.on_mlx(partial(change_instances, self.instances, settings))
        if changed.touch("models"):
            self.known.change(settings)
            for listing in self.known.known():
                self.models.pool.renew(listing.load_request)
            self._restart_loading_pinned()
        if changed.touch("sampling", "context"):
            self.models.pool.change(partial(changed_model, settings=settings))

    def _restart_loading_pinned(self) -> None:
        if self._pinning is not None:
            self._pinning.cancel()
        self._pinning = asyncio.create_task(load_pinned(self.models, self.known))
