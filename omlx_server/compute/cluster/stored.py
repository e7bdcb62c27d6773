"""Reads slices of arrays in safetensors files. Mlx thread and reader threads. Pieces that lie
close together are read with what is between them."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from omlx_server.compute.weights.files import weight_files

_LENGTH_BYTES = 8
_BATCH_BYTES = 16 << 20
# Shorter gaps between pieces are read too.
_GAP_BYTES = 256 << 10
_UNSIGNED = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file: `nbytes` bytes at `offset`, in row-major order."""

    file: Path
    offset: int
    nbytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AxisSlice:
    """The `ranges` (start, stop) of indices along one axis of an array."""

    axis: int
    ranges: Sequence[tuple[int, int]]

    @property
    def length(self) -> int:
        return sum(stop - start for start, stop in self.ranges)


def stored_arrays(directory: Path) -> Mapping[str, StoredArray]:
    """Return the arrays of a directory by unique name. Raises OSError or ValueError."""
    arrays, twice = dict[str, StoredArray](), set[str]()
    for file in weight_files(directory):
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        twice |= header.keys() & arrays.keys()
        for name, about in header.items():
            start, stop = about["data_offsets"]
            offset = _LENGTH_BYTES + length + start
            arrays[name] = StoredArray(file, offset, stop - start, tuple(about["shape"]))
    return {name: array for name, array in arrays.items() if name not in twice}


def read_slice(
    array: StoredArray, kept: AxisSlice, dtype: mx.Dtype, pool: ThreadPoolExecutor
) -> mx.array:
    """Read a slice of an array of this `dtype`. Raises OSError."""
    shape = list(array.shape)
    shape[kept.axis] = kept.length
    result = mx.zeros(shape, dtype=_UNSIGNED[dtype.size])
    mx.eval(result)
    rows = prod(array.shape[: kept.axis])
    data = memoryview(result).cast("B")  # type: ignore[arg-type]
    target = np.frombuffer(data, np.uint8).reshape(rows, -1)
    with array.file.open("rb", buffering=0) as file:
        jobs = _jobs(file.fileno(), array, kept, target)
        for done in [pool.submit(job) for job in jobs]:
            done.result()
    return result.view(dtype)


def _jobs(
    file: int, array: StoredArray, kept: AxisSlice, target: NDArray[np.uint8]
) -> Iterator["partial[None]"]:
    rows = len(target)
    row_bytes = array.nbytes // rows
    unit = row_bytes // array.shape[kept.axis]
    runs = [(start * unit, stop * unit) for start, stop in kept.ranges]
    gap = (row_bytes - target.shape[1]) // len(runs)
    if rows > 1 and gap < _GAP_BYTES:
        step = max(1, _BATCH_BYTES // row_bytes)
        for first in range(0, rows, step):
            some = target[first : first + step]
            yield partial(
                _read_columns, file, array.offset + first * row_bytes, row_bytes, runs, some
            )
        return
    for number in range(rows):
        at, row = array.offset + number * row_bytes, target[number]
        for start, stop in runs:
            for first in range(start, stop, _BATCH_BYTES):
                last = min(first + _BATCH_BYTES, stop)
                yield partial(_read, file, at + first, row[: last - first])
                row = row[last - first :]


def _read_columns(
    file: int,
    offset: int,
    row_bytes: int,
    runs: Sequence[tuple[int, int]],
    target: NDArray[np.uint8],
) -> None:
    whole = np.empty((len(target), row_bytes), np.uint8)
    _read(file, offset, whole.reshape(-1))
    at = 0
    for start, stop in runs:
        target[:, at : at + stop - start] = whole[:, start:stop]
        at += stop - start


def _read(file: int, offset: int, target: NDArray[np.uint8]) -> None:
    done = 0
    while done < len(target):
        count = os.preadv(file, [target[done:].data], offset + done)
        if not count:
            raise OSError("a file of weights is cut off")
        done += count
