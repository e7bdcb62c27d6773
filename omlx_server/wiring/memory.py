"""The server's share of the machine's memory, and its parts."""

import logging
from dataclasses import dataclass
from pathlib import Path

from omlx_server.compute.codecs.base import CannotFill
from omlx_server.compute.hardware import device
from omlx_server.compute.hardware.heap import ram_bytes
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.model.notes import Allowed, always
from omlx_server.compute.planning.model_shape import shape_of, structural_shape
from omlx_server.compute.planning.plan_file import planning
from omlx_server.compute.planning.tower_plan import planning_tower
from omlx_server.core.experts.budget import budget_of
from omlx_server.core.experts.files import ExpertFiles
from omlx_server.core.memory import ledger
from omlx_server.core.memory.estimate import FlatPlanner, Planner
from omlx_server.core.memory.guard import MemoryGuard
from omlx_server.core.memory.kv import Decode, PrefillShape, StepShape
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.work import Work
from omlx_server.engine.memory.account import MemoryShare, MemoryWatch
from omlx_server.models.layout import expert_files, expert_sizes, weight_bytes
from omlx_server.models.locate import Located
from omlx_server.settings import Settings

_log = logging.getLogger(__name__)
# The hot tier leaves room for a step of sequences with so many earlier tokens.
_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Shares:
    """Bytes of the machine's memory for this process, and of its parts."""

    limit: int
    pool: int  # freed buffers of MLX
    queue: int  # writes to the cold tier
    wired: int  # what Metal may wire; 0 for none


def shares_of(settings: Settings, *, cold: bool) -> Shares:
    """Return the shares before any model is known."""
    memory = settings.memory
    working_set = device.working_set()
    limit = ledger.limit_of(memory.limit, memory.reserve, ram_bytes(), working_set)
    queue = ledger.queue_bytes(limit, settings.cache.cold_write_queue_bytes if cold else 0)
    wired = ledger.wired_bytes(memory.wired, limit, working_set)
    return Shares(limit, ledger.pool_bytes(limit), queue, wired)


def planning_for(
    loaded: LoadedModel,
    settings: Settings,
    notes: Path | None,
    allowed: Allowed = always,
) -> Work[Planner]:
    """Make the planner of a step's bytes, and the plan of vision. Runs probes in slices, unless
    `notes` has their results or `memory.activation_reserve` is a number. `allowed`: whether `notes`
    may be written."""
    flat = settings.memory.activation_reserve
    if flat == "auto":
        yield from planning_tower(loaded, notes, allowed)
        return (yield from planning(loaded, notes, allowed))
    try:
        return FlatPlanner(shape_of(loaded), flat)
    except CannotFill:
        return FlatPlanner(structural_shape(loaded.dims), flat)


def make_watch(share: MemoryShare, planner: Planner, *, queue: int = 0) -> MemoryWatch:
    guard = MemoryGuard(share.account.limit, planner, share, queue=queue)
    return MemoryWatch(guard, planner, share)


def cache_budget(
    shares: Shares, planner: Planner, weights: int, limits: SchedulerLimits, settings: Settings
) -> HotBudget:
    """Return the budget of all hot tiers. "auto" is what the limit leaves beside weights, the
    largest step, the pool and the queue."""
    chunks = limits.chunks
    decode = Decode(limits.max_batch_size, _CONTEXT, grows=True)
    beside = StepShape(decode, (PrefillShape(1, chunks.beside, _CONTEXT),))
    alone = StepShape(None, (PrefillShape(1, chunks.alone, _CONTEXT),))
    step = max(map(planner.transient, (beside, alone)))
    taken = weights + step + shares.pool + shares.queue
    automatic = ledger.hot_cache_bytes(shares.limit, taken)
    cache = settings.cache
    hot = automatic if cache.hot_cache_max_bytes == "auto" else cache.hot_cache_max_bytes
    share = ledger.checkpoint_bytes(hot)
    checkpoints = share if cache.checkpoint_max_bytes == "auto" else cache.checkpoint_max_bytes
    return HotBudget(hot, checkpoints, buffers=device.MAX_BUFFERS // 2)


def experts_on_disk(
    located: Located, settings: Settings, limit: int
) -> tuple[ExpertFiles, int] | None:
    """Return the files whose experts stay there, and how many of each layer are in memory."""
    name, sizes = located.names[0], expert_sizes(located.path)
    overrides, weights = settings.overrides_of(located.names), weight_bytes(located.path)
    budget = budget_of(weights, sizes, limit, overrides.experts, overrides.experts_memory)
    if budget is None and overrides.experts == "disk":
        _log.warning("%s has no experts that can stay on the disk", name)
    if budget is None or sizes is None or (files := expert_files(located.path)) is None:
        return None
    _log.info(
        "%s: %d of %d experts of each layer are in memory, with all other weights %s; the others "
        "are read when they are needed",
        name,
        *(budget.slots, sizes.experts, ledger.in_words(budget.nbytes)),
    )
    return files, budget.slots
