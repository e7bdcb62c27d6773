"""The fast GELU is the exact one, within 1e-6."""

import math

import mlx.core as mx
import numpy as np

from omlx_server.compute.embed.bert import gelu, rational_gelu


def test_close_to_the_exact_one_everywhere() -> None:
    points = [x / 64 for x in range(-10 * 64, 10 * 64 + 1)]
    exact = [0.5 * x * math.erfc(-x / math.sqrt(2)) for x in points]
    for function in (rational_gelu, gelu):
        assert np.abs(np.array(function(mx.array(points))) - exact).max() < 1.5e-6


def test_large_values_are_kept_or_gone() -> None:
    assert rational_gelu(mx.array([1e30, -1e30, 0.0])).tolist() == [mx.array(1e30).item(), 0.0, 0.0]


def test_half_precision_stays_so() -> None:
    value = gelu(mx.array([1.0, 30000.0, -30000.0], dtype=mx.float16))
    assert value.dtype == mx.float16
    assert value.tolist() == [mx.array(0.8413, dtype=mx.float16).item(), 30000.0, 0.0]
