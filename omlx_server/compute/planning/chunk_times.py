"""Measures the time of chunks by size, all with the same token in their middle, and by depth. A
chunk is measured only if the one before predicts an allowed time. Mlx thread, at load."""

import logging
import math
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

from omlx_server.compute.codecs.base import CannotFill
from omlx_server.compute.forward_parts import decoder_layers
from omlx_server.compute.model import notes
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.plan_file import key_of
from omlx_server.compute.planning.probe import ForwardProbe, layers_of
from omlx_server.core.chunk_sizes import ALONE_SECONDS, ChunkPace
from omlx_server.core.memory.kv import Keeps, PrefillShape, cache_bytes
from omlx_server.core.work import A, Work
from omlx_server.errors import one_line

_log = logging.getLogger(__name__)

ChunkTimes = dict[int, float]
"""Seconds of a chunk by its tokens."""
# The tokens of first chunks, each of which bounds the time of the next.
_FEW, _FIRST_CHUNK = 8, 64
# The first run of a size compiles its kernels.
_RUNS = 2
# The greatest depth at which a small chunk is measured, and the longest that it may take.
_DEEPEST = 16384
_LONGEST_SECONDS = 10.0
# A few tokens may take as long as many more.
_LONGEST_FIRST = 5.0


def timing_chunks(
    loaded: LoadedModel,
    sizes: Sequence[int],
    file: Path | None = None,
    allowed: notes.Allowed = notes.always,
) -> Work[ChunkTimes | None]:
    """Return the times of chunks of `sizes` tokens (ascending), up to the last allowed one, from
    `file` or one forward per slice, then written if `allowed()`. None if it can't be probed."""
    problem = "the size of chunks is a default, not measured"
    key = f"{_machine(loaded)}; chunks of {', '.join(map(str, sizes))}"
    times = _parse_times(notes.read(file).get(key), sizes) if file else None
    if times is None:
        times = yield from _measuring(problem, _measuring_sizes(loaded, sizes), key, file, allowed)
    return times


def timing_depths(
    loaded: LoadedModel,
    sizes: Sequence[int],
    times: ChunkTimes,
    most_bytes: int,
    file: Path | None = None,
    allowed: notes.Allowed = notes.always,
) -> Work[ChunkPace | None]:
    """Return the pace of chunks, whose `times` by `sizes` are known or measured now, one forward
    per slice, from `file` or then written if `allowed()`. Caches take at most `most_bytes`. None
    if it can't be probed, or at no depth."""
    problem = "the time of deep chunks is not measured"
    key = f"{_machine(loaded)}; depths of chunks of {', '.join(map(str, sizes))}"
    pace = _parse_pace(notes.read(file).get(key)) if file else None
    if pace is None:
        measuring = _measuring_depths(loaded, sizes, times, most_bytes)
        pace = yield from _measuring(problem, measuring, key, file, allowed)
    return pace if pace is None or len(pace.by_depth) > 1 or not pace.growing else None


def _measuring(
    problem: str, measuring: Work[A], key: str, file: Path | None, allowed: notes.Allowed
) -> Work[A | None]:
    """Measure, and note it. Log the problem and return None if the model can't be probed."""
    try:
        measures = yield from measuring
    except (CannotFill, RuntimeError, TypeError, ValueError) as error:
        _log.warning("%s: %s", problem, one_line(error))
        return None
    finally:
        mx.clear_cache()
    if file and allowed():
        plain = msgspec.to_builtins(measures, str_keys=True)
        notes.write(file, {**notes.read(file), key: plain})
    return measures


def _machine(loaded: LoadedModel) -> str:
    return f"{key_of(loaded)}; {os.cpu_count()} cores"


def _measuring_sizes(loaded: LoadedModel, sizes: Sequence[int]) -> Work[ChunkTimes]:
    probe, middle, times = ForwardProbe(loaded), sizes[-1] // 2, ChunkTimes()
    measured_size, seconds = _FEW, (yield from _fastest(probe, _FEW, middle))
    for size in (_FIRST_CHUNK, *sizes):
        predicted_seconds = seconds * size / measured_size
        if predicted_seconds > (_LONGEST_FIRST if size == _FIRST_CHUNK else ALONE_SECONDS):
            break
        measured_size, seconds = size, (yield from _fastest(probe, size, middle))
        times[size] = seconds
    return {size: times[size] for size in sizes if size in times}


def _measuring_depths(
    loaded: LoadedModel, sizes: Sequence[int], times: ChunkTimes, most_bytes: int
) -> Work[ChunkPace]:
    """Return the pace by small chunks and those of `sizes`, and by the depth of a small one."""
    probe, layers = ForwardProbe(loaded), layers_of(loaded.model)
    middle, by_size = sizes[-1] // 2, ChunkTimes()
    seconds = 0.0
    for size in sorted({1, _FEW, _FIRST_CHUNK, *(times or sizes[:1])}):
        if size not in times and size * seconds / max(by_size, default=1) > _LONGEST_SECONDS:
            break
        seconds = times.get(size) or (yield from _fastest(probe, size, middle))
        by_size[size] = seconds
    if _FIRST_CHUNK not in by_size:
        raise ValueError("a chunk takes too long")
    depth, took = middle, by_size[_FIRST_CHUNK]
    by_depth = {float(middle): took}
    deepest = min(most_bytes // max(1, cache_bytes(layers, 1, 1024) // 1024), _DEEPEST)
    # At worst all of its time grows with the depth.
    while depth < deepest and 4 * took <= _LONGEST_SECONDS:
        depth = min(4 * max(depth, _FIRST_CHUNK), deepest)
        took = yield from _fastest(probe, _FIRST_CHUNK, depth)
        by_depth[float(depth)] = took
    # A longer or deeper chunk takes no less time; what says otherwise is noise.
    longest, shallow = accumulate(by_size.values(), max), by_size[_FIRST_CHUNK]
    growth = accumulate(((took - shallow) / _FIRST_CHUNK for took in by_depth.values()), max)
    return ChunkPace(
        len(decoder_layers(loaded.model)),
        sum(layer.count for layer in layers if layer.keeps in (Keeps.GROWING, Keeps.PADDED)),
        tuple(zip(by_size, longest, strict=True)),
        tuple(zip(by_depth, growth, strict=True)),
    )


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


def _parse_pace(stored: Any) -> ChunkPace | None:
    try:
        pace = msgspec.convert(stored, ChunkPace)
    except msgspec.ValidationError:
        return None
    has_both = pace.layers > 0 and pace.by_size and pace.by_depth
    return pace if has_both and all(_is_time(seconds) for _, seconds in pace.by_size) else None


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
