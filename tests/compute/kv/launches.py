"""What a decode launches, counted in the graph that MLX has of it."""

from collections.abc import Sequence

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.hardware import device
from omlx_server.compute.model.loader import LoadedModel
from tests.compute.kernels import kernels

_MORE_VIEWS = ("Flatten", "Unflatten", "Depends", "Contiguous")


def launches(loaded: LoadedModel, batch: Caches, rows: int) -> int:
    """How many kernels a decode of so many rows takes."""
    return len(_kernels(loaded, batch, rows))


def launches_on_gpu(
    loaded: LoadedModel, batch: Caches, rows: int, patch: pytest.MonkeyPatch
) -> int:
    """How many kernels a decode of so many rows takes as on a GPU: with what we choose there, and
    one kernel for each norm and each RoPE, which MLX takes apart on the CPU backend. Two arrays are
    concatenated by two copies, and what is made contiguous is so already."""
    with patch.context() as on_gpu:
        on_gpu.setattr(device, "is_cpu", lambda: False)
        for name in ("rms_norm", "rope"):
            on_gpu.setattr(mx.fast, name, _one_kernel)
        names = _kernels(loaded, batch, rows)
    left = [name for name in names if name not in _MORE_VIEWS and not name.startswith("View ")]
    return len(left) + left.count("Concatenate")


def _one_kernel(x: mx.array, *_: object, **__: object) -> mx.array:
    return mx.abs(x)


def _kernels(loaded: LoadedModel, batch: Caches, rows: int) -> list[str]:
    logits = loaded.model(mx.zeros((rows, 1), dtype=mx.int32), cache=batch)
    return kernels(logits, *arrays_of(batch))


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
