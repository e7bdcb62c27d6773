"""Measures the time of chunks by size, all with the same token in their middle, and by depth. A
chunk is measured only if the one before predicts an allowed time. Mlx thread, at load."""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx_server.compute.codecs.base import CannotFill
from omlx_server.compute.forward_parts import decoder_layers
from omlx_server.compute.model import notes
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.plan_file import key_of
from omlx_server.compute.planning.probe import ForwardProbe, layers_of
from omlx_server.core.chunk_sizes import ALONE_SECONDS, ChunkPace
from omlx_server.core.memory.kv import Keeps, PrefillShape, cache_bytes
from omlx_server.core.work import Work
from omlx_server.errors import one_line

_log = logging.getLogger(__name__)

ChunkTimes = dict[int, float]
"""Seconds of a chunk by its tokens."""
# The tokens of a first chunk, which bounds the time of the smallest candidate.
_FIRST_CHUNK = 64
# The first run of a size compiles its kernels.
_RUNS = 2
# The greatest depth at which a small chunk is measured, and the longest that it may take.
_DEEPEST = 16384
_LONGEST_SECONDS = 10.0


def timing_chunks(
    loaded: LoadedModel,
    sizes: Sequence[int],
    file: Path | None = None,
    allowed: notes.Allowed = notes.always,
) -> Work[ChunkTimes | None]:
    """Return the times of chunks of `sizes` tokens (ascending), up to the last allowed one, from
    `file` or one forward per slice, then written if `allowed()`. None if it can't be probed."""
    key = f"{_machine(loaded)}; chunks of {', '.join(map(str, sizes))}"
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
    key = f"{_machine(loaded)}; depths of chunks of {', '.join(map(str, sizes))}"
    try:
        layers = layers_of(loaded.model)
        seconds = _parse_seconds(notes.read(file).get(key)) if file else None
        if seconds is None:
            deepest = most_bytes // max(1, cache_bytes(layers, 1, 1024) // 1024)
            seconds = yield from _measuring_depths(ForwardProbe(loaded), sizes, times, deepest)
            if file and allowed():
                notes.write(file, {**notes.read(file), key: seconds})
    except (CannotFill, RuntimeError, TypeError, ValueError) as error:
        _log.warning("the time of deep chunks is not measured: %s", one_line(error))
        return None
    finally:
        mx.clear_cache()
    growing = sum(layer.count for layer in layers if layer.keeps in (Keeps.GROWING, Keeps.PADDED))
    pace = _pace_of(seconds, len(decoder_layers(loaded.model)), growing)
    return pace if len(pace.by_depth) > 1 or not growing else None


def _machine(loaded: LoadedModel) -> str:
    return f"{key_of(loaded)}; {os.cpu_count()} cores"


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


def _measuring_depths(
    probe: ForwardProbe, sizes: Sequence[int], times: ChunkTimes, deepest: int
) -> Work[dict[str, float]]:
    """Return seconds by the tokens of a chunk, and as "@depth" of `_FIRST_CHUNK` by its middle."""
    middle, seconds = sizes[-1] // 2, dict[str, float]()
    for size in (1, _FIRST_CHUNK, *(times or sizes[:1])):
        seconds[str(size)] = times.get(size) or (yield from _fastest(probe, size, middle))
    depth, took = middle, seconds[str(_FIRST_CHUNK)]
    seconds[f"@{middle}"] = took
    deepest = min(deepest, _DEEPEST)
    # At worst all of its time grows with the depth.
    while depth < deepest and 4 * took <= _LONGEST_SECONDS:
        depth = min(4 * max(depth, _FIRST_CHUNK), deepest)
        took = yield from _fastest(probe, _FIRST_CHUNK, depth)
        seconds[f"@{depth}"] = took
    return seconds


def _pace_of(seconds: Mapping[str, float], layers: int, growing: int) -> ChunkPace:
    sizes = sorted((int(name), took) for name, took in seconds.items() if name[0] != "@")
    depths = sorted((int(name[1:]), took) for name, took in seconds.items() if name[0] == "@")
    # A longer or deeper chunk takes no less time; what says otherwise is noise.
    longest = accumulate((took for _, took in sizes), max)
    growth = accumulate(((took - depths[0][1]) / _FIRST_CHUNK for _, took in depths), max)
    return ChunkPace(
        layers,
        growing,
        tuple(zip((size for size, _ in sizes), longest, strict=True)),
        tuple(zip((float(depth) for depth, _ in depths), growth, strict=True)),
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


def _parse_seconds(stored: Any) -> dict[str, float] | None:
    if not isinstance(stored, dict) or not all(map(_is_time, stored.values())):
        return None
    digits = [name.removeprefix("@") for name in stored]
    has_both = any(name[0] == "@" for name in stored) and any(name[0] != "@" for name in stored)
    return stored if has_both and all(map(str.isdecimal, digits)) else None


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
