"""What the server may use of the machine, and how that is shared out, as the settings want it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omlx_server.compute.codecs.base import CannotFill
from omlx_server.compute.hardware import device
from omlx_server.compute.hardware.machine import ram_bytes
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.model.notes import Allowed, always
from omlx_server.compute.planning.model_shape import shape_of, structural_shape
from omlx_server.compute.planning.plan_file import planning
from omlx_server.core.memory import budgets
from omlx_server.core.memory.estimate import FlatPlanner, Planner
from omlx_server.core.memory.guard import Guard
from omlx_server.core.memory.shape import Decode, Prefill, StepShape
from omlx_server.core.prefix_cache.eviction import Budget
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.work import Work
from omlx_server.engine.memory.account import Account, Seat
from omlx_server.engine.memory.monitor import MemoryWatch
from omlx_server.settings import Settings

# A step of which the memory is set aside: a chunk behind so many tokens.
_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Shares:
    """The limit of the process and what is set aside of it. `queue` is the cold tier's."""

    limit: int
    pool: int
    queue: int


def shares_of(settings: Settings, *, cold: bool) -> Shares:
    """How the memory is shared out before any model is known."""
    limit = memory_limit(settings)
    wanted = settings.cache.cold_write_queue_bytes if cold else 0
    return Shares(limit, budgets.pool_bytes(limit), budgets.queue_bytes(limit, wanted))


def memory_limit(settings: Settings) -> int:
    """The bytes that the server may hold."""
    memory = settings.memory
    return budgets.limit_of(memory.limit, memory.reserve, ram_bytes(), device.working_set())


def planning_for(
    loaded: LoadedModel,
    settings: Settings,
    notes: Path | None,
    chunk: int,
    allowed: Allowed = always,
) -> Work[Planner]:
    """Estimates of what steps take: by probes, a slice each, unless the settings say a number.
    Prompts are read in chunks of so many tokens at most. `allowed`: whether `notes` may be
    written."""
    flat = settings.memory.activation_reserve
    if flat == "auto":
        return (yield from planning(loaded, notes, chunk, allowed))
    try:
        return FlatPlanner(shape_of(loaded), flat, chunk=chunk)
    except CannotFill:
        return FlatPlanner(structural_shape(loaded.dims), flat, chunk=chunk)


def make_account(shares: Shares, left: Callable[[], int]) -> Account:
    """The account of all models; MLX is told its bounds. `left` as in the account."""
    device.bound(shares.limit, pool=shares.pool)
    return Account(shares.limit, shares.queue, left)


def make_watch(seat: Seat, planner: Planner, *, queue: int = 0) -> MemoryWatch:
    """The guard of one model, which has that seat."""
    guard = Guard(seat.account.limit, planner, queue=queue, neighbours=seat)
    return MemoryWatch(guard, planner, seat)


def cache_budget(
    shares: Shares, planner: Planner, weights: int, limits: Limits, settings: Settings
) -> Budget:
    """Of the hot tiers of all models, whose weights are so large: what remains."""
    rows, chunk = limits.max_batch_size, limits.prefill_chunk_tokens
    decode = Decode(rows, _CONTEXT, grows=True)
    step = planner.transient(StepShape(decode, (Prefill(1, chunk, _CONTEXT),)))
    taken = weights + step + shares.pool + shares.queue
    automatic = budgets.hot_cache_bytes(shares.limit, taken)
    cache = settings.cache
    hot = automatic if cache.hot_cache_max_bytes == "auto" else cache.hot_cache_max_bytes
    share = budgets.checkpoint_bytes(hot)
    checkpoints = share if cache.checkpoint_max_bytes == "auto" else cache.checkpoint_max_bytes
    return Budget(hot, checkpoints, buffers=device.MAX_BUFFERS // 2)
