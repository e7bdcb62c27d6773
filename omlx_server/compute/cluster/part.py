"""Opens one rank's part of a model, and reads only that part of its weights. Mlx thread.

mlx-lm's classes split lazy arrays, which MLX then reads whole. The slices that a class takes are
found by splitting an empty copy of the model whose arrays hold their own indices. MLX reads what is
stored in another form, or not sliced along one axis.
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

from omlx_server.compute.cluster.ranks import Ranks
from omlx_server.compute.cluster.splitting import split
from omlx_server.compute.cluster.stored import AxisSlice, StoredArray, read_slice, stored_arrays
from omlx_server.compute.weights.reading import of_model
from omlx_server.core.work import Work

Arrays = Mapping[str, mx.array]
# Opens the model with lazy arrays, and tells of those that are in its files, by their names there.
Open = Callable[[Callable[[Arrays], None]], tuple[nn.Module, dict[str, Any]]]

_SLICE_BYTES = 128 << 20
_READERS = 4  # as many as MLX has
_MOST_RANGES = 64


@dataclass(frozen=True, slots=True)
class _Sliced:
    """A parameter of which a rank keeps a slice along `axis`. Its indices are numbered from `first`
    on; no two parameters share a number."""

    name: str
    stored: StoredArray
    dtype: mx.Dtype
    axis: int
    first: int

    @property
    def indices(self) -> mx.array:
        """An int32 array of the stored shape, which holds each element's number along `axis`."""
        shape = [1] * len(self.stored.shape)
        shape[self.axis] = -1
        count = self.stored.shape[self.axis]
        numbers = mx.arange(self.first, self.first + count, dtype=mx.int32)
        return mx.broadcast_to(numbers.reshape(shape), self.stored.shape)

    def found(self, taken: mx.array, shape: tuple[int, ...]) -> AxisSlice | None:
        """Return the slice that a class has `taken`; None unless it has this shape and is the same
        at each place along the other axes."""
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
    path: Path, ranks: Ranks, open_model: Open
) -> Work[tuple[nn.Module, dict[str, Any]]]:
    """Open this rank's part of the model in `path`, and its config.json. Sliced arrays are read,
    others are lazy. Raises ModelUnavailable if a file can't be read or the model can't be split."""
    files = dict[str, mx.array]()
    model, config = of_model(path, lambda: open_model(files.update))
    whole = _parameters(model)
    split(model, ranks)
    if ranks.by_layers:  # what it lacks is never read
        return model, config
    yield
    part = _parameters(model)
    sliced = of_model(path, lambda: list(_sliced(path, files, whole, part)))
    files, whole = {}, {}
    taken = of_model(path, lambda: _taken(sliced, ranks, open_model))
    nbytes = 0
    with ThreadPoolExecutor(_READERS, thread_name_prefix="weights") as pool:
        for one in sliced:
            kept = one.found(taken.pop(one.name), part.pop(one.name).shape)
            if kept is None:
                continue
            array = of_model(path, partial(read_slice, one.stored, kept, one.dtype, pool))
            model.update(tree_unflatten([(one.name, array)]))
            nbytes += array.nbytes
            if nbytes >= _SLICE_BYTES:
                nbytes = 0
                yield
    return model, config


def _parameters(model: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def _sliced(path: Path, files: Arrays, whole: Arrays, part: Arrays) -> Iterator[_Sliced]:
    """Yield the parameters that are stored as the `whole` model has them, and shorter in one axis
    of the `part`."""
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
    """Return the axes along which a part is shorter; none where it differs in more than that."""
    if whole.ndim != part.ndim or whole.dtype != part.dtype:
        return []
    sizes = enumerate(zip(whole.shape, part.shape, strict=True))
    return [axis for axis, (before, after) in sizes if before != after]


def _taken(sliced: list[_Sliced], ranks: Ranks, open_model: Open) -> dict[str, mx.array]:
    """Return what the model's class takes of the indices, by parameter name."""
    copy, _ = open_model(lambda arrays: None)
    copy.update(tree_unflatten([(one.name, one.indices) for one in sliced]))
    split(copy, ranks)
    return _parameters(copy)
