"""What a decode launches, counted in the graph that MLX has of it: no more for equal rows than with
mlx-lm's caches, and for others by the number of groups and spans, not of rows."""

from collections.abc import Sequence

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.kv.spans import Runs
from omlx_server.compute.model.loader import LoadedModel
from tests.compute.kernels import kernels
from tests.compute.warm_runs import tiny


def launches(loaded: LoadedModel, batch: Caches, rows: int) -> int:
    """How many kernels a decode of so many rows takes."""
    logits = loaded.model(mx.zeros((rows, 1), dtype=mx.int32), cache=batch)
    return len(kernels(logits, *arrays_of(batch)))


def arrays_of(batch: Caches) -> list[mx.array]:
    arrays = list[mx.array]()
    for cache in batch:
        if isinstance(state := cache.state, list):
            arrays += [array for keys, values in state for array in (*keys, *values)]
        else:
            arrays += [part for part in state if isinstance(part, mx.array)]
    return arrays


def read(loaded: LoadedModel, lengths: Sequence[int], *, ours: bool = True) -> list[Caches]:
    """Caches of rows of so many tokens."""
    rows = list[Caches]()
    for length in lengths:
        model = loaded.model
        caches = cache_ops.new_caches(model) if ours else [KVCache() for _ in model.layers]
        model(mx.zeros((1, length), dtype=mx.int32), cache=caches)
        cache_ops.evaluate(caches, wait=True)
        rows.append(caches)
    return rows


def merged(rows: Sequence[Caches]) -> Caches:
    batch = cache_ops.merge(rows)
    cache_ops.evaluate(batch, wait=True)
    return batch


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "deepseek_v3"])
@pytest.mark.parametrize("rows", [2, 8])
def test_equal_rows_take_no_more_than_with_mlx_lms_caches(architecture: str, rows: int) -> None:
    loaded = tiny(architecture)
    counts = [
        launches(loaded, merged(read(loaded, [60] * rows, ours=ours)), rows)
        for ours in (True, False)
    ]
    assert counts[0] <= counts[1]


@pytest.mark.parametrize("architecture", ["llama", "deepseek_v3"])
def test_more_rows_of_the_same_lengths_take_no_more(architecture: str) -> None:
    loaded = tiny(architecture)
    few = launches(loaded, merged(read(loaded, [60, 61, 700, 701])), 4)
    many = launches(loaded, merged(read(loaded, [60, 61, 700, 62, 63, 64, 710, 720])), 8)
    assert many == few


@pytest.mark.parametrize("architecture", ["llama", "deepseek_v3"])
def test_more_rows_on_one_span_take_no_more(architecture: str) -> None:
    loaded, runs = tiny(architecture), Runs(least=0)
    counts = []
    for rows in (2, 8):
        [one] = read(loaded, [300])
        forked = cache_ops.forked(one, rows, 256, runs)
        counts.append(launches(loaded, merged(forked), rows))
    assert counts[0] == counts[1]
    alone = launches(loaded, merged(read(loaded, [300, 300])), 2)
    assert counts[0] <= 3 * alone
