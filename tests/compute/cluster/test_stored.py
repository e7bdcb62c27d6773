"""Slices that are read from a file are those of the whole array, however they lie in it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import pytest

from omlx_server.compute.cluster import stored
from omlx_server.compute.cluster.stored import AxisSlice, read_slice, stored_arrays

SHAPE = (6, 10, 8)
DTYPES = (mx.bfloat16, mx.float32, mx.uint32, mx.uint8, mx.bool_)
RANGES = (((0, 3),), ((3, 6),), ((1, 2), (4, 6)), ((4, 6), (0, 1), (0, 1)))


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.mark.parametrize("gap", [0, 1 << 20])
@pytest.mark.parametrize("batch", [7, 1 << 20])
def test_a_slice_is_that_of_the_array(
    tmp_path: Path,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    gap: int,
    batch: int,
) -> None:
    monkeypatch.setattr(stored, "_MOST_GAP_BYTES", gap)
    monkeypatch.setattr(stored, "_BATCH_BYTES", batch)
    noise = mx.random.normal(SHAPE, key=mx.random.key(0)) * 100
    arrays = {str(dtype): noise.astype(dtype) for dtype in DTYPES}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"before": mx.zeros(3), **arrays})
    found = stored_arrays(tmp_path)
    for dtype in DTYPES:
        for axis in range(3):
            for ranges in RANGES:
                read = read_slice(found[str(dtype)], AxisSlice(axis, ranges), dtype, pool)
                indices = mx.array([i for start, stop in ranges for i in range(start, stop)])
                wanted = mx.take(arrays[str(dtype)], indices, axis)
                assert read.dtype == dtype
                assert mx.array_equal(read.view(mx.uint8), wanted.view(mx.uint8)), (axis, ranges)


def test_a_name_that_is_in_two_files_is_none(tmp_path: Path) -> None:
    mx.save_safetensors(str(tmp_path / "model-1.safetensors"), {"a": mx.zeros(3), "b": mx.ones(3)})
    mx.save_safetensors(str(tmp_path / "model-2.safetensors"), {"a": mx.ones(3), "c": mx.ones(3)})
    assert stored_arrays(tmp_path).keys() == {"b", "c"}


def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    file = tmp_path / "model.safetensors"
    mx.save_safetensors(str(file), {"a": mx.zeros((4, 8))})
    file.write_bytes(file.read_bytes()[:-1])
    (array,) = stored_arrays(tmp_path).values()
    for axis in range(2):
        with pytest.raises(OSError, match="cut off"):
            read_slice(array, AxisSlice(axis, ((1, 4),)), mx.float32, pool)
