"""A tiny model whose memory has a limit."""

import gc
from collections.abc import Callable

from omlx_server.compute.hardware import device
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.model_shape import shape_of
from omlx_server.core.memory.estimate import FlatPlanner
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.wiring.memory import make_watch
from tests.engine.running import BUDGET, LIMITS, make_instance
from tests.tiny_models import load_tiny

STEP = 1 << 16


def watched_instance(
    room: int, limits: SchedulerLimits = LIMITS, account: MemoryAccount | None = None
) -> Callable[[], ModelInstance]:
    """An instance that may hold `room` bytes above its weights."""
    account = account or MemoryAccount(0)

    def load() -> ModelInstance:
        loaded = load_tiny("llama", num_hidden_layers=4, num_key_value_heads=4, head_dim=32)
        gc.collect()
        weights = device.active_memory()
        planner = FlatPlanner(shape_of(loaded), STEP)
        account.limit = weights + room
        share = account.share(weights)
        share.set_weights_and_budget(weights, lambda weights: BUDGET)
        return make_instance(loaded, limits, watch=make_watch(share, planner))

    return load


def oracle() -> LoadedModel:
    return load_tiny("llama", num_hidden_layers=4, num_key_value_heads=4, head_dim=32)
