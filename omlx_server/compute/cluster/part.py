"""Opens one rank's part of a model, and reads only that part of its weights. Mlx thread. MLX reads
split arrays whole, so a class's slices are found by splitting an empty copy of the model whose
arrays hold their own indices. Arrays stored in another form are left to MLX."""

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
from omlx_server.compute.cluster.splitting import split_model
from omlx_server.compute.cluster.stored import AxisSlice, StoredArray, read_slice, stored_arrays
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.kv import dispatch
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.fingerprint import together_fingerprint
from omlx_server.compute.model.loader import LoadedModel, open_model, reading_model, weight_bytes
from omlx_server.compute.planning.probe import one_token_caches
from omlx_server.compute.row_ends import verifies_drafts
from omlx_server.compute.weights.weights import guarded_load
from omlx_server.core.work import Work

Arrays = Mapping[str, mx.array]
# Opens the model with lazy arrays, and passes on those of its files, by name.
OpenModel = Callable[[Callable[[Arrays], None]], tuple[nn.Module, dict[str, Any]]]

_BYTES_PER_WORK_SLICE = 128 << 20
_READERS = 4  # as many as MLX has
_MOST_RANGES = 64


@dataclass(frozen=True, slots=True)
class _SplitArray:
    """A stored array that is split along `axis`, whose `indices` begin at `first`."""

    name: str
    stored: StoredArray
    dtype: mx.Dtype
    axis: int
    first: int

    @property
    def indices(self) -> mx.array:
        """The indices along `axis`, in the array's shape."""
        shape = [1] * len(self.stored.shape)
        shape[self.axis] = -1
        count = self.stored.shape[self.axis]
        numbers = mx.arange(self.first, self.first + count, dtype=mx.int32)
        return mx.broadcast_to(numbers.reshape(shape), self.stored.shape)

    def find_slice(self, split: mx.array, shape: tuple[int, ...]) -> AxisSlice | None:
        """Return what a split kept of the indices; None unless that is a slice of `axis` alone."""
        if split.shape != shape or split.dtype != mx.int32:
            return None
        axes = range(split.ndim)
        line = split[tuple(slice(None) if axis == self.axis else slice(1) for axis in axes)]
        is_one_axis = mx.all(split == line)
        mx.eval(line, is_one_axis)
        numbers = np.array(line).reshape(-1) - self.first
        is_own = numbers.min() >= 0 and numbers.max() < self.stored.shape[self.axis]
        if not (is_one_axis.item() and is_own):
            return None
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        ranges = tuple((int(run[0]), int(run[-1]) + 1) for run in runs)
        return AxisSlice(self.axis, ranges) if len(ranges) <= _MOST_RANGES else None


def opening_part(
    path: Path, ranks: ConnectedRanks, open_model: OpenModel
) -> Work[tuple[nn.Module, dict[str, Any]]]:
    """Open this rank's part and its config.json, in slices. Raises ModelUnavailable."""
    files = dict[str, mx.array]()
    model, config = guarded_load(path, lambda: open_model(files.update))
    before_split = _parameters_by_name(model)
    split_model(model, ranks)
    if ranks.by_layers:  # what it lacks is never read
        return model, config
    yield
    after_split = _parameters_by_name(model)
    arrays = guarded_load(path, lambda: list(_split_arrays(path, files, before_split, after_split)))
    files, before_split = {}, {}
    indices = guarded_load(path, lambda: _split_indices(arrays, ranks, open_model))
    nbytes = 0
    with ThreadPoolExecutor(_READERS, thread_name_prefix="weights") as pool:
        for one in arrays:
            kept = one.find_slice(indices.pop(one.name), after_split.pop(one.name).shape)
            if kept is None:
                continue
            array = guarded_load(path, partial(read_slice, one.stored, kept, one.dtype, pool))
            model.update(tree_unflatten([(one.name, array)]))
            nbytes += array.nbytes
            if nbytes >= _BYTES_PER_WORK_SLICE:
                nbytes = 0
                yield
    return model, config


def _parameters_by_name(model: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def _split_arrays(
    path: Path, files: Arrays, before: Arrays, after: Arrays
) -> Iterator[_SplitArray]:
    """Yield arrays that files hold as they are and the split shortens along one axis."""
    names = {id(array): name for name, array in files.items()}
    stored_by_name, first = stored_arrays(path), 0
    for name, array in before.items():
        stored = stored_by_name.get(names.get(id(array), ""))
        if stored is None or stored.shape != array.shape or stored.nbytes != array.nbytes:
            continue
        axes = _changed_axes(array, after.get(name, array))
        if len(axes) == 1:
            yield _SplitArray(name, stored, array.dtype, axes[0], first)
            first += array.shape[axes[0]]


def _changed_axes(before: mx.array, after: mx.array) -> list[int]:
    if before.ndim != after.ndim or before.dtype != after.dtype:
        return []
    sizes = enumerate(zip(before.shape, after.shape, strict=True))
    return [axis for axis, (old, new) in sizes if old != new]


def _split_indices(
    arrays: list[_SplitArray], ranks: ConnectedRanks, open_model: OpenModel
) -> dict[str, mx.array]:
    copy, _ = open_model(lambda arrays: None)
    copy.update(tree_unflatten([(one.name, one.indices) for one in arrays]))
    split_model(copy, ranks)
    return _parameters_by_name(copy)


def loading_part(
    path: Path, ranks: ConnectedRanks, known_as: str, scheme: Scheme | None = None
) -> Work[LoadedModel]:
    """Load this rank's part of a model. Its fingerprint names the rank."""
    dispatch.install()
    model, config = yield from opening_part(path, ranks, partial(open_model, path))
    dims = yield from reading_model(model, config, path, scheme)
    part_fingerprint = together_fingerprint(known_as, f"rank {ranks.rank} of {ranks.size}")
    verifies = verifies_drafts(model)
    return LoadedModel(model, dims, part_fingerprint, weight_bytes(model), verifies, ranks=ranks)


def room_of_all(loaded: LoadedModel, ranks: ConnectedRanks, room: int) -> int:
    """Return how many bytes of its `room` this rank may use. All ranks call it together."""
    token_bytes: int = max(1, sum(leaf.nbytes for leaf in leaves(one_token_caches(loaded.model))))
    most_token_bytes = ranks.most(token_bytes)
    return max(0, ranks.least(room)) * token_bytes // most_token_bytes
