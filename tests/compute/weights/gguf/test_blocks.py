"""Quantised blocks have the values that the `gguf` package says, in MLX's form too."""

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from omlx_server.compute.weights.gguf.blocks import EXACT, UNPACKED, affine_blocks
from omlx_server.core.gguf.forms import BITS, GROUP
from omlx_server.core.gguf.head import TYPES

SIZES = {kind.name: kind.nbytes for kind in TYPES.values()}
# Where the halves of a block are: random bytes there would be no numbers.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


def random_blocks(name: str, count: int = 40) -> np.ndarray:
    rng = np.random.default_rng(len(name) + SIZES[name])
    blocks = rng.integers(0, 256, (count, SIZES[name]), dtype=np.uint8)
    for at in HALVES[name]:
        halves = rng.uniform(-0.1, 0.1, (count, 1)).astype("<f2")
        blocks[:, at : at + 2] = halves.view(np.uint8)
    return blocks


def expected(name: str, blocks: np.ndarray) -> np.ndarray:
    values: np.ndarray = dequantize(blocks, GGMLQuantizationType[name])
    return values.reshape(len(blocks), -1)


def values_in_mlx(name: str, blocks: np.ndarray) -> np.ndarray:
    affine = affine_blocks(blocks, name)
    assert affine.bits == BITS[name]
    q, scale, offset = map(mx.array, (affine.packed(), affine.scale, affine.offset))
    return np.array(mx.dequantize(q, scale, offset, group_size=GROUP, bits=affine.bits))


@pytest.mark.parametrize("name", EXACT)
def test_every_value_is_the_same_in_mlx(name: str) -> None:
    blocks = random_blocks(name)
    np.testing.assert_array_equal(values_in_mlx(name, blocks), expected(name, blocks))


@pytest.mark.parametrize("name", UNPACKED)
def test_types_with_two_scales_a_group_are_off_by_half_a_step_of_8_bits(name: str) -> None:
    blocks = random_blocks(name)
    np.testing.assert_array_equal(UNPACKED[name](blocks), expected(name, blocks))
    values = values_in_mlx(name, blocks).reshape(-1, GROUP)
    groups = expected(name, blocks).reshape(-1, GROUP)
    steps = (groups.max(axis=1) - groups.min(axis=1)) / 255
    assert (np.abs(values - groups).max(axis=1) <= 0.501 * steps + 1e-6).all()


def test_a_group_of_equal_values_stays() -> None:
    blocks = np.zeros((2, SIZES["Q6_K"]), np.uint8)
    np.testing.assert_array_equal(values_in_mlx("Q6_K", blocks), expected("Q6_K", blocks))
