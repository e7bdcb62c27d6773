"""Levels as codes of 8 bits: how near they come, and products with them against a naive oracle."""

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.kv.schemes import codebook, codes, packing
from tests.compute.kv.coded import coded_levels, distortion

BITS = (2, 3, 4, 8)
# The most that the squared error grows, as a share of that of the codebook.
MOST = {2: 1e-6, 3: 1e-4, 4: 1.1e-3, 8: 2e-4}

every_width = pytest.mark.parametrize("bits", BITS)


@every_width
def test_codes_come_near_the_levels(bits: int) -> None:
    levels, coded = codebook.levels(bits), coded_levels(bits)
    missed = (codebook.masses(bits) * (coded - levels) ** 2).sum()
    assert missed < MOST[bits] * distortion(bits)
    assert (np.diff(coded) > 0).all()
    assert coded == pytest.approx(-coded[::-1])


@every_width
def test_every_place_in_a_byte_has_its_own_code(bits: int) -> None:
    stored = 4 if bits == 3 else bits
    coding = codes.coding(bits)
    table, width = np.array(coding.table), 8 * coding.codes_per_index
    first = table[: 2**bits] & (1 << width) - 1
    for place in range(8 // stored):
        moved = table[np.arange(2**bits) << place * stored]
        assert (moved >> width * place & (1 << width) - 1 == first).all()


def stored(bits: int, dim: int, total: int) -> tuple[tuple[mx.array, mx.array], np.ndarray]:
    """Words and scales as they are stored, cut from longer buffers, and the vectors f64
    [2, 3, total, dim] that they stand for."""
    rng = np.random.default_rng(bits)
    index = rng.integers(0, 2**bits, (2, 3, total + 5, dim), dtype=np.uint8)
    scales = rng.uniform(0.1, 3, (2, 3, total + 5, 1)).astype(np.float16)
    words = packing.pack(mx.array(index), bits)
    vectors: np.ndarray = coded_levels(bits)[index] * scales.astype(np.float64)
    cut = words[:, :, :total], mx.array(scales)[:, :, :total]
    return cut, vectors[:, :, :total]


@every_width
@pytest.mark.parametrize("dim", [16, 64, 72, 80, 96, 128, 192])
@pytest.mark.parametrize("total", [1, 37])
def test_products_are_those_with_the_numbers_of_the_codes(bits: int, dim: int, total: int) -> None:
    arrays, vectors = stored(bits, dim, total)
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2, 3, 4, dim)).astype(np.float32)
    scores = codes.products(mx.array(rows), arrays, bits, transpose=True)
    assert scores.shape == (2, 3, 4, total) and scores.dtype == mx.float32
    assert np.abs(np.array(scores) - rows @ vectors.swapaxes(-1, -2)).max() < 1e-3
    weights = rng.uniform(size=(2, 3, 4, total)).astype(np.float32)
    sums = codes.products(mx.array(weights), arrays, bits, transpose=False)
    assert np.abs(np.array(sums)[..., :dim] - weights @ vectors).max() < 1e-3


@every_width
def test_a_token_that_holds_nothing_adds_nothing(bits: int) -> None:
    """Buffers behind a row's tokens hold zeros."""
    words = mx.zeros((1, 1, 3, packing.words(64, bits)), dtype=mx.uint32)
    scales = mx.zeros((1, 1, 3, 1), dtype=mx.float16)
    sums = codes.products(mx.ones((1, 1, 2, 3)), (words, scales), bits, transpose=False)
    assert not np.array(sums).any()
