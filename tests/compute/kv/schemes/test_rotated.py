"""Rotating keys, queries and values changes nothing but how well they quantise."""

import mlx.core as mx
import pytest

from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.rotated import Rotated
from omlx_server.compute.kv.schemes.rotation import VectorRotation
from tests.arrays import plain

DIMS = (32, 64, 80, 96, 128, 160)  # of powers of two, 12 * 2^k, and others


def noise(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def fitting(bits: int, dim: int) -> Rotated:
    return Rotated.of(bits, 32 if dim % 64 else 64)


def with_outliers(x: mx.array) -> mx.array:
    """As the keys of real models are: a few coordinates are far larger than the others."""
    return x * mx.where(mx.arange(x.shape[-1]) % 29 == 3, 40.0, 1.0)


def attention(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")


def worst(one: mx.array, other: mx.array) -> float:
    distance: float = plain(mx.abs(one - other).max())
    return distance


@pytest.mark.parametrize("length", [1, 40])
@pytest.mark.parametrize("dim", [dim for dim in DIMS if dim % 32 == 0])
def test_eight_bits_are_close_to_plain_attention(dim: int, length: int) -> None:
    q, k, v = noise(1, 2, 4, length, dim), noise(2, 2, 2, 90, dim), noise(3, 2, 2, 90, 2 * dim)
    scheme = fitting(8, dim)
    keys, values = scheme.quantize_keys(k), scheme.quantize_values(v)
    answer = scheme.attend(q, keys, values, scale=dim**-0.5, mask="causal")
    assert answer.dtype == q.dtype and answer.shape == (2, 4, length, 2 * dim)
    assert worst(answer, attention(q, k, v, dim**-0.5)) < 0.03


def squared_error(rotated: Rotated, x: mx.array, rotation: VectorRotation | None) -> float:
    """Mean over the numbers of x, relative to their mean square."""
    stored = rotation.forward(x) if rotation else x
    words, scales, biases = rotated.affine.quantize_keys(stored)
    bits, group_size = rotated.affine.bits, rotated.affine.group_size
    back = mx.dequantize(words, scales, biases, group_size=group_size, bits=bits)
    restored = rotation.inverse(back) if rotation else back
    relative: float = plain(((restored - x) ** 2).mean() / (x * x).mean())
    return relative


@pytest.mark.parametrize("dim", [dim for dim in DIMS if dim % 32 == 0])
def test_outliers_cost_about_half_of_what_they_cost_affine(dim: int) -> None:
    scheme, x = fitting(4, dim), with_outliers(noise(2, 1, 2, 300, dim))
    rotation = VectorRotation.of(dim, 0, 1)
    assert squared_error(scheme, x, rotation) < 0.6 * squared_error(scheme, x, None)
    keys = scheme.quantize_keys(x)
    assert plain(mx.array_equal(keys[0], scheme.affine.quantize_keys(rotation.forward(x))[0]))


def test_the_bytes_of_a_token_depend_on_it_alone() -> None:
    scheme = Rotated.of(4, 32)
    x = noise(1, 3, 2, 70, 96)
    whole = scheme.quantize_values(x)
    for row, start, stop in ((0, 0, 1), (1, 3, 40), (2, 69, 70)):
        part = scheme.quantize_values(x[row : row + 1, :, start:stop])
        for a, b in zip(whole, part, strict=True):
            assert plain(mx.array_equal(a[row : row + 1, :, start:stop], b))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_half_precision_goes_in_and_comes_out(dtype: mx.Dtype) -> None:
    scheme = Rotated.of(8, 64)
    q, k = noise(1, 1, 4, 5, 64).astype(dtype), noise(2, 1, 2, 90, 64).astype(dtype)
    keys = scheme.quantize_keys(k)
    assert [array.dtype for array in keys] == [mx.uint32, dtype, dtype]
    answer = scheme.attend(q, keys, keys, scale=0.125, mask=None)
    wanted = mx.fast.scaled_dot_product_attention(q, k, k, scale=0.125)
    assert answer.dtype == dtype
    assert worst(answer.astype(mx.float32), wanted.astype(mx.float32)) < 0.05


def test_nothing_that_is_stored_is_that_of_affine() -> None:
    x = noise(1, 1, 2, 5, 64)
    assert not plain(
        mx.array_equal(Rotated.of(4).quantize_keys(x)[0], Affine(4).quantize_keys(x)[0])
    )
    other = Rotated(Affine(4), seed=1)
    assert not plain(mx.array_equal(Rotated.of(4).quantize_keys(x)[0], other.quantize_keys(x)[0]))
    assert len({Rotated.of(4).name, other.name, Affine(4).name, Rotated.of(4, 32).name}) == 4


def test_it_takes_the_head_dims_of_affine() -> None:
    Rotated.of(4, 32).check(160)
    with pytest.raises(ValueError, match="group size of 64 does not divide its head dim of 80"):
        Rotated.of(4, 64).check(80)
