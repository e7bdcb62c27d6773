"""Measures the time of chunks by size, all with the same token in their middle. A size is measured
only if the one before predicts an allowed time. Mlx thread, at load."""

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx_server.compute.codecs.base import CannotFill
from omlx_server.compute.model import notes
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.plan_file import key_of
from omlx_server.compute.planning.probe import ForwardProbe
from omlx_server.core.chunk_sizes import ALONE_SECONDS
from omlx_server.core.memory.kv import PrefillShape
from omlx_server.core.work import Work
from omlx_server.errors import one_line

_log = logging.getLogger(__name__)

ChunkTimes = dict[int, float]
"""Seconds of a chunk by its tokens."""
# The tokens of a first chunk, which bounds the time of the smallest candidate.
_FIRST_CHUNK = 64
# The first run of a size compiles its kernels.
_RUNS = 2


def timing_chunks(
    loaded: LoadedModel,
    sizes: Sequence[int],
    file: Path | None = None,
    allowed: notes.Allowed = notes.always,
) -> Work[ChunkTimes | None]:
    """Return the times of chunks of `sizes` tokens (ascending), up to the last allowed one, from
    `file` or one forward per slice, then written if `allowed()`. None if it can't be probed."""
    machine = f"{key_of(loaded)}; {os.cpu_count()} cores"
    key = f"{machine}; chunks of {', '.join(map(str, sizes))}"
    times = _parse_times(notes.read(file).get(key), sizes) if file else None
    if times is not None:
        return times
    try:
        times = yield from _measuring_sizes(ForwardProbe(loaded), sizes)
    except (CannotFill, RuntimeError, TypeError, ValueError) as error:
        _log.warning("the size of chunks is a default, not measured: %s", one_line(error))
        return None
    finally:
        mx.clear_cache()
    if file and allowed():
        plain = {str(size): seconds for size, seconds in times.items()}
        notes.write(file, {**notes.read(file), key: plain})
    return times


def _measuring_sizes(probe: ForwardProbe, sizes: Sequence[int]) -> Work[ChunkTimes]:
    middle, times = sizes[-1] // 2, ChunkTimes()
    measured_size, seconds = _FIRST_CHUNK, (yield from _fastest(probe, _FIRST_CHUNK, middle))
    for size in sizes:
        predicted_seconds = seconds * size / measured_size
        if predicted_seconds > ALONE_SECONDS:
            break
        measured_size, seconds = size, (yield from _fastest(probe, size, middle))
        times[size] = seconds
    return times


def _fastest(probe: ForwardProbe, tokens: int, middle: int) -> Work[float]:
    runs = list[float]()
    for _ in range(_RUNS):
        runs.append(probe.prefill_seconds(PrefillShape(1, tokens, middle - tokens // 2)))
        yield
    return min(runs)


def _parse_times(stored: Any, sizes: Sequence[int]) -> ChunkTimes | None:
    if not isinstance(stored, dict) or list(stored) != [str(s) for s in sizes[: len(stored)]]:
        return None
    times = dict(zip(sizes, stored.values(), strict=False))
    return times if all(map(_is_time, times.values())) else None


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
