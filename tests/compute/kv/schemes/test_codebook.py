"""The Lloyd-Max levels of N(0, 1), and the way to an index and back."""

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.kv.schemes import codebook
from tests.arrays import plain
from tests.compute.kv.coded import distortion

# As published; the last ones have two digits.
DISTORTIONS = (0.3634, 0.1175, 0.03455, 0.00950, 0.00250, 0.00064, 0.00016, 0.000041)

every_stored = pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])


def nearest(x: np.ndarray, bits: int) -> list[int]:
    """The oracle: how many midpoints a number exceeds."""
    found: list[int] = np.searchsorted(codebook.midpoints(bits), x, side="left").tolist()
    return found


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_distortion_is_the_known_one(bits: int) -> None:
    assert distortion(bits) == pytest.approx(DISTORTIONS[bits - 1], rel=0.02 if bits < 7 else 0.025)


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_distortion_is_that_of_the_levels(bits: int) -> None:
    levels = codebook.levels(bits)
    x = np.linspace(-9, 9, 400_001)
    error = x - levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, x)]
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    integral = (error**2 * density).sum() * (x[1] - x[0])
    assert distortion(bits) == pytest.approx(integral, rel=1e-3)


@every_stored
def test_masses_are_the_shares_of_the_cells(bits: int) -> None:
    assert codebook.masses(bits).sum() == pytest.approx(1)


@every_stored
def test_squares_are_those_of_the_levels_as_they_are_decoded(bits: int) -> None:
    levels = codebook.decode(mx.arange(2**bits).astype(mx.uint8), bits)
    assert plain(codebook.squares(bits)) == plain(levels * levels)


@pytest.mark.parametrize(
    ("bits", "positive"),
    [(1, [0.79788]), (2, [0.45278, 1.51042]), (3, [0.24509, 0.75601, 1.34391, 2.15195])],
)
def test_the_levels_are_the_known_ones(bits: int, positive: list[float]) -> None:
    assert codebook.levels(bits)[1 << bits >> 1 :] == pytest.approx(positive, abs=1e-5)


@pytest.mark.parametrize("bits", range(1, 9))
def test_levels_ascend_are_symmetric_and_the_means_of_their_cells(bits: int) -> None:
    levels = codebook.levels(bits)
    assert len(levels) == 2**bits and (np.diff(levels) > 0).all()
    assert (levels == -levels[::-1]).all()
    x = np.linspace(-9, 9, 1_800_001)
    cell = np.searchsorted((levels[1:] + levels[:-1]) / 2, x)
    density = np.exp(-(x**2) / 2)
    means = np.bincount(cell, x * density) / np.bincount(cell, density)
    assert means == pytest.approx(levels, abs=2e-5)


@every_stored
def test_a_number_gets_the_nearest_level_exactly(bits: int) -> None:
    borders = codebook.midpoints(bits)
    assert borders.dtype == np.float32
    smallest = np.float32(1e-30)  # denormals are zero on some devices
    either_side = [
        *np.nextafter(borders, np.float32(np.inf)).tolist(),
        *borders.tolist(),
        *np.nextafter(borders, np.float32(-np.inf)).tolist(),
    ]
    drawn = np.random.default_rng(1).normal(size=20_000) * 1.7
    extremes = [0.0, -0.0, smallest, -smallest, 6.0, -6.0, 1e9, -1e9, np.inf, -np.inf]
    x = np.array([*either_side, *drawn, *extremes], dtype=np.float32)
    x = x[(np.abs(x) >= smallest) | (x == 0)]
    index = codebook.encode(mx.array(x), bits)
    assert index.dtype == mx.uint8
    assert plain(index) == nearest(x, bits)


@every_stored
def test_a_vector_has_the_same_indices_in_any_shape(bits: int) -> None:
    x = mx.array(np.random.default_rng(2).normal(size=(3, 5, 7)).astype(np.float32))
    flat = codebook.encode(x.reshape(-1), bits)
    assert plain(codebook.encode(x, bits)) == plain(flat.reshape(x.shape))
    assert plain(codebook.encode(x.swapaxes(0, 2), bits)) == plain(
        flat.reshape(x.shape).swapaxes(0, 2)
    )


@pytest.mark.parametrize("bits", [(2, 3), (3, 4), (4, 2)])
def test_parts_in_bits_of_their_own_are_encoded_as_if_alone(bits: tuple[int, int]) -> None:
    x = np.random.default_rng(4).normal(size=(2, 1, 3, 500, 8)).astype(np.float32)
    x[:, 0, 0, :15, 0] = codebook.midpoints(4)
    index = codebook.encode_each(mx.array(x), bits)
    squares = codebook.squares_each(index, bits)
    assert index.dtype == mx.uint8
    for part, width in enumerate(bits):
        alone = codebook.encode(mx.array(x[part]), width)
        assert plain(mx.array_equal(index[part], alone))
        assert plain(mx.array_equal(squares[part], codebook.squares(width)[alone]))


@every_stored
def test_what_is_no_number_gets_some_index(bits: int) -> None:
    x = mx.array([float("nan")] * 5000 + [1e-3])
    index = plain(codebook.encode(x, bits))
    assert all(0 <= i < 2**bits for i in index) and index[-1] == 1 << bits >> 1


@every_stored
def test_an_index_becomes_its_level(bits: int) -> None:
    """So nearly that the distortion grows by less than a thousandth, and each level has its own
    index."""
    index = mx.arange(2**bits).astype(mx.uint8)
    decoded = codebook.decode(index, bits)
    assert decoded.dtype == mx.float32 and plain(codebook.encode(decoded, bits)) == plain(index)
    levels = codebook.levels(bits)
    missed = np.array(decoded) - levels
    edges = np.array([-np.inf, *((levels[1:] + levels[:-1]) / 2), np.inf])
    drawn = np.random.default_rng(3).normal(size=200_000)
    mass = np.histogram(drawn, edges)[0] / drawn.size
    assert (mass * missed**2).sum() < distortion(bits) / 1000
    if bits <= 3:
        assert np.abs(missed).max() < 1e-6


@pytest.mark.parametrize("bits", [0, 9, -1])
def test_other_bits_have_no_codebook(bits: int) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        codebook.levels(bits)


def test_tables_cannot_be_changed() -> None:
    for table in (codebook.levels(4), codebook.midpoints(4)):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 0
