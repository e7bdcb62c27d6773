"""Rotations: orthogonal, undone exactly, the same everywhere and for any number of vectors."""

import threading

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.kv.schemes.rotation import VectorRotation
from tests.arrays import plain

HADAMARD = (1, 2, 12, 24, 48, 64, 96, 128, 192, 256)
OTHER = (3, 5, 17, 36, 72, 80, 100, 112, 160, 224, 576)

every_dim = pytest.mark.parametrize("dim", HADAMARD + OTHER)


def normal(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(5).normal(size=shape).astype(np.float32))


def sylvester(order: int) -> np.ndarray:
    matrix: np.ndarray = np.ones((1, 1))
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    matrix /= np.sqrt(order)
    return matrix


def same(one: mx.array, other: mx.array) -> bool:
    return one.dtype == other.dtype and bool(plain(mx.array_equal(one, other)))


@every_dim
@pytest.mark.parametrize("rounds", [1, 2])
def test_it_is_orthogonal_and_undone_by_its_inverse(dim: int, rounds: int) -> None:
    rotation = VectorRotation.of(dim, 7, rounds)
    matrix = np.array(rotation.forward(mx.eye(dim)))
    assert np.abs(matrix @ matrix.T - np.eye(dim)).max() < 5e-6
    x = normal(2, 3, dim)
    assert mx.allclose(rotation.inverse(rotation.forward(x)), x, atol=2e-6)
    assert mx.allclose(rotation.forward(rotation.inverse(x)), x, atol=2e-6)


@every_dim
def test_its_matrix_rotates_as_it_does_but_for_rounding(dim: int) -> None:
    rotation = VectorRotation.of(dim, 3, 3)
    x = normal(2, 5, dim)
    assert mx.allclose(x @ rotation.matrix, rotation.forward(x), atol=1e-5)
    assert mx.allclose(x @ rotation.matrix.T, rotation.inverse(x), atol=1e-5)


@every_dim
def test_inner_products_stay(dim: int) -> None:
    rotation = VectorRotation.of(dim, 1, 2)
    q, k = normal(4, dim), normal(9, dim) + 1
    rotated = rotation.forward(q) @ rotation.forward(k).T
    assert mx.allclose(rotated, q @ k.T, atol=2e-5 * dim**0.5)


@pytest.mark.parametrize("dim", [d for d in HADAMARD + OTHER if d % 12 or d in OTHER])
def test_a_round_is_signs_then_hartley_times_hadamard(dim: int) -> None:
    rotation = VectorRotation.of(dim, 3, 1)
    odd = dim // (dim & -dim)
    turns = 2 * np.pi * np.outer(range(odd), range(odd)) / odd
    hartley = (np.cos(turns) + np.sin(turns)) / np.sqrt(odd)
    matrix = np.kron(hartley, sylvester(dim // odd))
    x = np.array(normal(3, dim))
    expected = (x * np.array(rotation.signs[0])) @ matrix
    assert np.allclose(np.array(rotation.forward(mx.array(x))), expected, atol=2e-6)


@pytest.mark.parametrize("dim", [64, 80, 96, 112, 128, 576])
def test_a_vector_rotates_to_the_same_bits_whatever_it_is_rotated_with(dim: int) -> None:
    rotation = VectorRotation.of(dim, 0, 2)
    x = normal(2, 3, 37, dim)
    whole = rotation.forward(x)
    for start, stop in ((0, 1), (1, 3), (3, 16), (16, 37)):
        assert same(rotation.forward(x[:, :, start:stop]), whole[:, :, start:stop])
    assert same(rotation.forward(x[1, 2, 5]), whole[1, 2, 5])
    assert same(rotation.inverse(whole[:1, 1:, 4:6]), rotation.inverse(whole)[:1, 1:, 4:6])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dim", [64, 80, 96, 100, 128, 576])
def test_three_rounds_spread_a_vector_of_one_coordinate(dim: int, seed: int) -> None:
    spread = mx.abs(VectorRotation.of(dim, seed, 3).forward(mx.eye(dim))) * dim**0.5
    # Of dim * dim normal numbers the largest is about 4.5, and the mean fourth power 3.
    assert plain(spread.max()) < 5.5
    assert plain((spread**4).mean()) == pytest.approx(3, rel=0.1)


def test_signs_are_those_of_the_seed_on_every_machine() -> None:
    signs = plain(VectorRotation.of(16, 0, 1).signs[0])
    assert signs == [1, -1, -1, -1, -1, 1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1]


def test_each_seed_dim_and_round_has_its_own_signs() -> None:
    drawn = [
        VectorRotation.of(64, 0, 2).signs[0],
        VectorRotation.of(64, 0, 2).signs[1],
        VectorRotation.of(64, 1, 2).signs[0],
        VectorRotation.of(128, 0, 2).signs[0][:64],
    ]
    for i, one in enumerate(drawn):
        assert set(plain(one)) == {-1.0, 1.0}
        assert abs(plain(one.sum())) < 32
        assert not any(same(one, other) for other in drawn[:i])
    assert same(VectorRotation.of(64, 0, 1).signs[0], drawn[0])


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("dim", [64, 80])
def test_half_precision_is_rotated_in_float32(dim: int, dtype: mx.Dtype) -> None:
    rotation = VectorRotation.of(dim, 0, 2)
    x = normal(5, dim).astype(dtype)
    assert same(rotation.forward(x), rotation.forward(x.astype(mx.float32)).astype(dtype))
    assert same(rotation.inverse(x), rotation.inverse(x.astype(mx.float32)).astype(dtype))


def test_it_may_be_used_from_another_thread_than_it_was_made_on() -> None:
    rotation = VectorRotation.of(80, 99, 2)
    results: list[list[float]] = []

    def use() -> None:
        results.append(plain(rotation.forward(mx.ones((80,)))))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert results == [plain(rotation.forward(mx.ones((80,))))]


@pytest.mark.parametrize(("dim", "rounds"), [(0, 1), (-2, 1), (64, 0)])
def test_there_is_no_rotation_of_nothing(dim: int, rounds: int) -> None:
    with pytest.raises(ValueError, match="no rotation"):
        VectorRotation.of(dim, 0, rounds)
