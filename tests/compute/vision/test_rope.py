"""Rotations by positions on three axes."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from omlx_server.compute.vision.rope import AxisPositions, AxisRope, Sections
from omlx_server.errors import ModelUnavailable
from tests.compute.vision.recorded import family
from tests.compute.vision.tiny import CONFIGS

WIDTH, THETA = 128, 1_000_000.0
QWEN3 = Sections((24, 20, 20), interleaved=True)
QWEN2 = Sections((16, 24, 24), interleaved=False)
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
FAR = 40_000


def random(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(1)).astype(dtype)


def same(first: mx.array, second: mx.array) -> bool:
    return bool(mx.array_equal(first, second).item())


@pytest.mark.parametrize("sections", [QWEN3, QWEN2])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("scaling", [None, YARN])
def test_equal_positions_are_turned_as_before_bit_for_bit(
    sections: Sections, dtype: mx.Dtype, scaling: Any
) -> None:
    rope = initialize_rope(WIDTH, THETA, False, scaling, 32768)
    x, wrapped = random((2, 3, 5, WIDTH), dtype), AxisRope(rope, sections)
    for starts in ([0, 0], [7, 7], [3, FAR]):
        offset: Any = mx.array(starts) if starts[0] != starts[1] else starts[0]
        rows = [np.stack([np.arange(s, s + 5, dtype=np.int32)] * 3) for s in starts]
        expected = rope(x, offset=offset)
        assert same(wrapped(x, offset=offset), expected)
        assert same(wrapped(x, offset=AxisPositions(rows)), expected)
        assert wrapped(x, offset=AxisPositions(rows)).dtype == dtype


def by_hand(x: np.ndarray[Any, Any], positions: Any, axes: Any) -> Any:
    """x [T, D], turned in float64 by the position of each frequency's axis."""
    half = WIDTH // 2
    angles = positions[axes, :].T / THETA ** (np.arange(half) / half)
    first, second = x[:, :half], x[:, half:]
    cosines, sines = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], 1)


@pytest.mark.parametrize("sections", [QWEN3, QWEN2])
def test_each_frequency_turns_by_its_axis(sections: Sections) -> None:
    positions = np.random.RandomState(3).randint(0, 300, (3, 6)).astype(np.int32)
    x = random((1, 1, 6, WIDTH), mx.float32)
    rope = AxisRope(nn.RoPE(WIDTH, base=THETA), sections)
    found = np.array(rope(x, offset=AxisPositions([positions])))[0, 0]
    expected = by_hand(np.array(x)[0, 0].astype(np.float64), positions, sections.axes())
    assert np.abs(found - expected).max() < 1e-4


def test_axes_are_interleaved_as_long_as_they_have_frequencies() -> None:
    assert Sections((4, 2, 2), True).axes().tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
    assert Sections((2, 3, 3), False).axes().tolist() == [0, 0, 1, 1, 1, 2, 2, 2]


def test_sections_are_read_from_each_form_of_config() -> None:
    assert family("qwen3_vl").sections(CONFIGS["qwen3_vl"]) == Sections((4, 2, 2), True)
    assert family("qwen3_5").sections(CONFIGS["qwen3_5"]) == Sections((2, 1, 1), True)
    assert family("qwen2_5_vl").sections(CONFIGS["qwen2_5_vl"]) == Sections((2, 3, 3), False)
    assert family("gemma3").sections(CONFIGS["gemma3"]) is None
    text = {"hidden_size": 64, "num_attention_heads": 4}
    newer = {"text_config": {**text, "rope_parameters": {"mrope_section": [2, 3, 3]}}}
    assert Sections.read(newer, interleaved=False) == Sections((2, 3, 3), False)


@pytest.mark.parametrize("section", [None, [2, 3], [2, 3, 4], [8, 0, "0"], [9, -1, 0], "233"])
def test_sections_that_make_no_sense_are_refused(section: object) -> None:
    config = {**CONFIGS["qwen2_5_vl"], "rope_scaling": {"mrope_section": section}}
    with pytest.raises(ModelUnavailable, match="mrope_section"):
        Sections.read(config, interleaved=False)
