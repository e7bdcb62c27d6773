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

from omlx_server.compute.weights.weights import gguf_files, weight_files

_LENGTH_BYTES = 8
_BATCH_BYTES = 16 << 20
# Shorter gaps between pieces are read too.
_MOST_GAP_BYTES = 256 << 10
# numpy has no bfloat16: bytes are filled in through integers of the same size.
_UNSIGNED_BY_SIZE = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}


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
    if gguf_files(directory):
        raise ValueError("a GGUF file can't be divided among machines")
    arrays, repeated = dict[str, StoredArray](), set[str]()
    for file in weight_files(directory):
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        repeated |= header.keys() & arrays.keys()
        for name, about in header.items():
            start, stop = about["data_offsets"]
            offset = _LENGTH_BYTES + length + start
            arrays[name] = StoredArray(file, offset, stop - start, tuple(about["shape"]))
    return {name: array for name, array in arrays.items() if name not in repeated}


def read_slice(
    array: StoredArray, kept: AxisSlice, dtype: mx.Dtype, pool: ThreadPoolExecutor
) -> mx.array:
    """Read a slice of an array of this `dtype`. Raises OSError."""
    shape = list(array.shape)
    shape[kept.axis] = kept.length
    result = mx.zeros(shape, dtype=_UNSIGNED_BY_SIZE[dtype.size])
    mx.eval(result)
    rows = prod(array.shape[: kept.axis])
    data = memoryview(result).cast("B")  # type: ignore[arg-type]
    target = np.frombuffer(data, np.uint8).reshape(rows, -1)
    with array.file.open("rb", buffering=0) as file:
        jobs = _read_jobs(file.fileno(), array, kept, target)
        for future in [pool.submit(job) for job in jobs]:
            future.result()
    return result.view(dtype)


def _read_jobs(
    file: int, array: StoredArray, kept: AxisSlice, target: NDArray[np.uint8]
) -> Iterator["partial[None]"]:
    """Yield reads that fill `target` [rows, kept bytes]: a row for each index before the axis."""
    rows = len(target)
    row_bytes = array.nbytes // rows
    index_bytes = row_bytes // array.shape[kept.axis]
    runs = [(start * index_bytes, stop * index_bytes) for start, stop in kept.ranges]
    mean_gap_bytes = (row_bytes - target.shape[1]) // len(runs)
    # Small gaps: whole rows are read, several at a time, and the kept columns copied.
    if rows > 1 and mean_gap_bytes < _MOST_GAP_BYTES:
        batch_rows = max(1, _BATCH_BYTES // row_bytes)
        for first in range(0, rows, batch_rows):
            offset, batch = array.offset + first * row_bytes, target[first : first + batch_rows]
            yield partial(_read_columns, file, offset, row_bytes, runs, batch)
        return
    for number in range(rows):
        offset, unread = array.offset + number * row_bytes, target[number]
        for start, stop in runs:
            for first in range(start, stop, _BATCH_BYTES):
                count = min(_BATCH_BYTES, stop - first)
                yield partial(_read_bytes, file, offset + first, unread[:count])
                unread = unread[count:]


def _read_columns(
    file: int, offset: int, row_bytes: int, runs: Sequence[tuple[int, int]], rows: NDArray[np.uint8]
) -> None:
    whole_rows = np.empty((len(rows), row_bytes), np.uint8)
    _read_bytes(file, offset, whole_rows.reshape(-1))
    column = 0
    for start, stop in runs:
        rows[:, column : column + stop - start] = whole_rows[:, start:stop]
        column += stop - start


def _read_bytes(file: int, offset: int, target: NDArray[np.uint8]) -> None:
    read = 0
    while read < len(target):
        count = os.preadv(file, [target[read:].data], offset + read)
        if not count:
            raise OSError("a file of weights is cut off")
        read += count
