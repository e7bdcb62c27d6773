"""Opens one rank's part of a model, and reads only that part of its weights. Mlx thread.

MLX reads split arrays whole, so a class's slices are found by splitting an empty copy of the model
whose arrays hold their own indices. Arrays stored in another form are left to MLX.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from omlx_server.compute.cluster.ranks import ConnectedRanks
from omlx_server.compute.cluster.splitting import split
from omlx_server.compute.cluster.stored import AxisSlice, StoredArray, read_slice, stored_arrays
from omlx_server.compute.weights.reading import guarded_load
from omlx_server.core.work import Work

Arrays = Mapping[str, mx.array]
# Opens the model with lazy arrays, and passes on those of its files, by name.
Open = Callable[[Callable[[Arrays], None]], tuple[nn.Module, dict[str, Any]]]

_SLICE_BYTES = 128 << 20
_READERS = 4  # as many as MLX has
_MOST_RANGES = 64


@dataclass(frozen=True, slots=True)
class _Sliced:
    name: str
    stored: StoredArray
    dtype: mx.Dtype
    axis: int
    first: int

    @property
    def indices(self) -> mx.array:
        shape = [1] * len(self.stored.shape)
        shape[self.axis] = -1
        count = self.stored.shape[self.axis]
        numbers = mx.arange(self.first, self.first + count, dtype=mx.int32)
        return mx.broadcast_to(numbers.reshape(shape), self.stored.shape)

    def found(self, taken: mx.array, shape: tuple[int, ...]) -> AxisSlice | None:
        """None unless the slice is along `axis` alone."""
        if taken.shape != shape or taken.dtype != mx.int32:
            return None
        line = taken[
            tuple(slice(None) if at == self.axis else slice(1) for at in range(taken.ndim))
        ]
        same = mx.all(taken == line)
        mx.eval(line, same)
        numbers = np.array(line).reshape(-1) - self.first
        if not same.item() or numbers.min() < 0 or numbers.max() >= self.stored.shape[self.axis]:
            return None
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        ranges = tuple((int(run[0]), int(run[-1]) + 1) for run in runs)
        return AxisSlice(self.axis, ranges) if len(ranges) <= _MOST_RANGES else None


def opening_part(
    path: Path, ranks: ConnectedRanks, open_model: Open
) -> Work[tuple[nn.Module, dict[str, Any]]]:
    """Open this rank's part and its config.json, in slices. Raises ModelUnavailable."""
    files = dict[str, mx.array]()
    model, config = guarded_load(path, lambda: open_model(files.update))
    whole = _parameters(model)
    split(model, ranks)
    if ranks.by_layers:  # what it lacks is never read
        return model, config
    yield
    part = _parameters(model)
    sliced = guarded_load(path, lambda: list(_sliced(path, files, whole, part)))
    files, whole = {}, {}
    taken = guarded_load(path, lambda: _taken(sliced, ranks, open_model))
    nbytes = 0
    with ThreadPoolExecutor(_READERS, thread_name_prefix="weights") as pool:
        for one in sliced:
            part_slice = one.found(taken.pop(one.name), part.pop(one.name).shape)
            if part_slice is None:
                continue
            array = guarded_load(path, partial(read_slice, one.stored, part_slice, one.dtype, pool))
            model.update(tree_unflatten([(one.name, array)]))
            nbytes += array.nbytes
            if nbytes >= _SLICE_BYTES:
                nbytes = 0
                yield
    return model, config


def _parameters(model: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def _sliced(path: Path, files: Arrays, whole: Arrays, part: Arrays) -> Iterator[_Sliced]:
    names = {id(array): name for name, array in files.items()}
    stored = stored_arrays(path)
    first = 0
    for name, array in whole.items():
        about = stored.get(names.get(id(array), ""))
        if about is None or about.shape != array.shape or about.nbytes != array.nbytes:
            continue
        axes = _axes(array, part.get(name, array))
        if len(axes) == 1:
            yield _Sliced(name, about, array.dtype, axes[0], first)
            first += array.shape[axes[0]]


def _axes(whole: mx.array, part: mx.array) -> list[int]:
    if whole.ndim != part.ndim or whole.dtype != part.dtype:
        return []
    sizes = enumerate(zip(whole.shape, part.shape, strict=True))
    return [axis for axis, (before, after) in sizes if before != after]


def _taken(sliced: list[_Sliced], ranks: ConnectedRanks, open_model: Open) -> dict[str, mx.array]:
    copy, _ = open_model(lambda arrays: None)
    copy.update(tree_unflatten([(one.name, one.indices) for one in sliced]))
    split(copy, ranks)
    return _parameters(copy)
