"""Settings applied to all lanes of a server, their memory and their cold tier. Runs on the mlx
thread, between two steps."""

from functools import partial

from omlx_server.compute.hardware import device
from omlx_server.core.memory.ledger import in_words
from omlx_server.engine.model_instance import Lane
from omlx_server.errors import ConfigError
from omlx_server.process.reload import NotYet
from omlx_server.settings import Settings
from omlx_server.wiring.memory import Shares, cache_budget, shares_of
from omlx_server.wiring.model_factory import Lanes, limits


def change_lanes(lanes: Lanes, settings: Settings) -> None:
    """Other bounds for all models, those that come later as well. Hot and cold tiers shrink at
    once; who is at work or waits goes on.

    Raises:
        ConfigError: the weights alone are more than the limit.
        NotYet: somebody would not fit under it. In both cases nothing has changed.
    """
    cache, cold = settings.cache, lanes.cold
    shares = shares_of(settings, cold=cache.has_cold)
    _check(lanes, shares)
    if cold is not None and cache.hot_cache_only:
        _leave_cold(lanes)
    elif cold is not None:
        cold.change(cache.cold_cache_max_bytes, shares.queue, cache.cold_min_free_disk)
    lanes.settings, lanes.shares = settings, shares
    lanes.account.limit, lanes.account.queue = shares.limit, shares.queue
    device.bound(shares.limit, pool=shares.pool)
    for lane in lanes.at_work():
        _change(lane, shares, settings)


def _check(lanes: Lanes, shares: Shares) -> None:
    account = lanes.account
    if shares.limit >= account.limit:
        return
    if account.weights > shares.limit:
        raise ConfigError(
            f"memory.limit {in_words(shares.limit)} is less than the weights of the models that "
            f"are loaded ({in_words(account.weights)})"
        )
    for lane in lanes.at_work():
        guard = lane.watch.guard.under(shares.limit, shares.queue) if lane.watch else None
        if guard is not None and not lane.scheduler.all_fit(guard):
            raise NotYet(
                f"memory.limit {in_words(shares.limit)} is too little for requests at work",
                hint="it applies when they have ended",
            )


def _leave_cold(lanes: Lanes) -> None:
    """From now on nobody touches the directory; what was to be written is dropped. What it holds
    stays there, and so do pins that are ended later."""
    for lane in lanes.at_work():
        lane.leave_cold()
    lanes.pins.leave_cold()
    cold, lanes.cold = lanes.cold, None
    if cold is not None:
        cold.close(0)


def _change(lane: Lane, shares: Shares, settings: Settings) -> None:
    bounds = limits(settings)
    lane.change(bounds, write_through=settings.cache.cold_write_through)
    if lane.watch is None:
        return
    seat, planner = lane.watch.seat, lane.watch.planner
    lane.watch.guard.change(shares.limit, shares.queue)
    budget_of = partial(cache_budget, shares, planner, limits=bounds, settings=settings)
    seat.settle(seat.weights, budget_of)
