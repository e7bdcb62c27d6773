"""Chooses a model's chunk sizes by the settings or by measurement."""

import logging
from dataclasses import replace
from pathlib import Path

from omlx_server.compute.hardware import device_policy
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.model.notes import Allowed
from omlx_server.compute.planning.chunk_times import ChunkTimes, timing_chunks, timing_depths
from omlx_server.core.chunk_sizes import ChunkSizes, candidates, choose_sizes
from omlx_server.core.memory.estimate import Planner
from omlx_server.core.memory.kv import PrefillShape
from omlx_server.core.work import Work
from omlx_server.settings import Settings

_log = logging.getLogger(__name__)
# A chunk may take 1/8 of the memory beside the weights, after so many tokens.
_PART_OF_MEMORY = 8
_CONTEXT = 4096
_MOST_PROBE_BYTES = 4 << 30  # of caches whose depth is measured


def default_chunks(settings: Settings) -> ChunkSizes:
    """Return the sizes in the settings; for "auto" the device's default."""
    setting, most = settings.scheduler.prefill_chunk_tokens, settings.scheduler.max_batched_tokens
    default = min(max(device_policy.current().chunk, settings.cache.block_tokens), most)
    size = default if setting == "auto" else setting
    return ChunkSizes(size, size)


def choosing(
    loaded: LoadedModel,
    settings: Settings,
    planner: Planner,
    room: int,
    notes: Path | None,
    allowed: Allowed,
) -> Work[ChunkSizes]:
    """Choose the sizes for a model with `room` bytes beside its weights. For "auto" they follow
    from times in `notes` or measured now. `allowed`: whether `notes` may be written."""
    chosen, times = default_chunks(settings), ChunkTimes()
    sizes = [chosen.beside]
    if settings.scheduler.prefill_chunk_tokens == "auto":
        sizes = _possible(settings, planner, room)
        has_choice = len(sizes) > 1
        measured = (yield from timing_chunks(loaded, sizes, notes, allowed)) if has_choice else {}
        if measured is not None:
            times, chosen = measured, choose_sizes(sizes[0], measured)
            rates = ", ".join(f"{size}: {size / seconds:.0f}/s" for size, seconds in times.items())
            measures = rates or "nothing measured"
            _log.info("prompts are prefilled in chunks of %s (%s)", chosen, measures)
    if longest_dispatch(settings) is None:
        return chosen
    most_bytes = min(_MOST_PROBE_BYTES, room // _PART_OF_MEMORY)
    pace = yield from timing_depths(loaded, sizes, times, most_bytes, notes, allowed)
    return replace(chosen, pace=pace)


def longest_dispatch(settings: Settings) -> float | None:
    """Return the most seconds of one dispatch, or None if there is no limit."""
    setting = settings.scheduler.longest_dispatch
    return (device_policy.current().longest_dispatch if setting == "auto" else setting) or None


def _possible(settings: Settings, planner: Planner, room: int) -> list[int]:
    """Return candidates, rising, that fit the memory and are not halved."""
    most = settings.scheduler.max_batched_tokens
    if settings.memory.activation_reserve != "auto":
        most = min(most, default_chunks(settings).beside)
    else:
        most = min(most, device_policy.current().halved)
    smallest, *larger = candidates(settings.cache.block_tokens, most)
    fits = [
        size
        for size in larger
        if planner.prefill(PrefillShape(1, size, _CONTEXT)) <= room // _PART_OF_MEMORY
    ]
    return [smallest, *fits]
