"""Opens the part of a model that one rank has, and reads of its weights only that part. Mlx thread.

mlx-lm's classes split arrays that are not read yet, but MLX then reads each of them whole. Which
slices a class takes is found by what it does to a second, empty copy of the model whose arrays hold
the numbers of their own indices. What is stored in another form than the model's, or is not sliced
along one axis, is left to MLX.
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
    """A parameter of which a rank keeps a slice along `axis`. `first` is the number of its first
    index in the empty copy: no two parameters there have a number in common."""

    name: str
    stored: StoredArray
    dtype: mx.Dtype
    axis: int
    first: int

    @property
    def indices(self) -> mx.array:
        """An int32 array of the stored shape, in which each number says its index along `axis`."""
        shape = [1] * len(self.stored.shape)
        shape[self.axis] = -1
        count = self.stored.shape[self.axis]
        numbers = mx.arange(self.first, self.first + count, dtype=mx.int32)
        return mx.broadcast_to(numbers.reshape(shape), self.stored.shape)

    def found(self, taken: mx.array, shape: tuple[int, ...]) -> AxisSlice | None:
        """The slice of what a class has `taken` of the indices; None unless that has this shape and
        is the same at each place along the other axes."""
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
    """This rank's part of the model in `path`, and its config.json. Slices of arrays are read; all
    else is still lazy.

    Raises:
        ModelUnavailable: a file can't be read, or the model can't be split over so many ranks.
    """
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
    """The parameters that are in the files as they are in the `whole` model, and of which the
    `part` has less along one axis."""
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
    """The axes along which a part is shorter; none where it differs in more than that."""
    if whole.ndim != part.ndim or whole.dtype != part.dtype:
        return []
    sizes = enumerate(zip(whole.shape, part.shape, strict=True))
    return [axis for axis, (before, after) in sizes if before != after]


def _taken(sliced: list[_Sliced], ranks: Ranks, open_model: Open) -> dict[str, mx.array]:
    """What the model's class takes of the indices of these arrays, by the names of parameters."""
    copy, _ = open_model(lambda arrays: None)
    copy.update(tree_unflatten([(one.name, one.indices) for one in sliced]))
    split(copy, ranks)
    return _parameters(copy)
