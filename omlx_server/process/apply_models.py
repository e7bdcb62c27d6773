"""Applies changed settings to loaded models. Runs on the mlx thread, between steps."""

from functools import partial

from omlx_server.compute.hardware import device
from omlx_server.core.memory.ledger import in_words
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import ConfigError
from omlx_server.process.reload import NotYet
from omlx_server.settings import Settings
from omlx_server.wiring.memory import Shares, cache_budget, shares_of
from omlx_server.wiring.model_factory import InstanceFactory, adapter_limits, limits


def change_instances(instances: InstanceFactory, settings: Settings) -> None:
    """Set new limits for all models, later ones too. Raises ConfigError if the loaded weights are
    more than the new memory.limit, NotYet if a request would not fit; nothing has changed then."""
    cache, cold = settings.cache, instances.cold
    shares = shares_of(settings, cold=cache.has_cold)
    _refuse_too_little_memory(instances, shares)
    if cold is not None and cache.hot_cache_only:
        _give_up_cold_tier(instances)
    elif cold is not None:
        cold.change(cache.cold_cache_max_bytes, shares.queue, cache.cold_min_free_disk)
    instances.settings, instances.shares = settings, shares
    instances.account.limit, instances.account.queue = shares.limit, shares.queue
    device.limit_memory(shares.limit, pool=shares.pool)
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
