"""Our attention for the CPU backend against MLX's own."""

import mlx.core as mx
import pytest

from omlx_server.compute.attention import by_powers

_mlx_attention = by_powers._mlx_attention


def mask_of(kind: str, batch: int, heads: int, length: int, total: int) -> mx.array | str | None:
    causal = mx.arange(total - length, total)[:, None] >= mx.arange(total)
    padded = mx.arange(total) >= mx.arange(batch)[:, None, None, None]
    return {
        "none": None,
        "causal": "causal",
        "2d": causal,
        "rows": padded & causal,
        "heads": mx.broadcast_to(padded & causal, (batch, heads, length, total)),
        "all hidden": mx.zeros((length, total), dtype=mx.bool_),
        "added": mx.where(causal, mx.random.normal((length, total)), -mx.inf),
    }[kind]


@pytest.mark.parametrize("kind", ["none", "causal", "2d", "rows", "heads", "all hidden", "added"])
@pytest.mark.parametrize("with_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize(
    "shape", [(1, 4, 4, 1, 1), (2, 6, 2, 1, 33), (3, 6, 3, 7, 40), (1, 8, 1, 16, 16)], ids=str
)
def test_it_gives_what_mlx_gives(
    shape: tuple[int, int, int, int, int], with_sinks: bool, kind: str
) -> None:
    batch, heads, groups, length, total = shape
    mx.random.seed(3)
    q = 3 * mx.random.normal((batch, heads, length, 16))
    k = 3 * mx.random.normal((batch, groups, total, 16))
    v = mx.random.normal((batch, groups, total, 8))
    sinks = mx.random.normal((heads,)) if with_sinks else None
    mask = mask_of(kind, batch, heads, length, total)
    ours = by_powers.attention(q, k, v, scale=0.25, mask=mask, sinks=sinks)
    theirs = _mlx_attention(q, k, v, scale=0.25, mask=mask, sinks=sinks)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert mx.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_scores_may_be_as_large_as_floats_allow() -> None:
    q = mx.array([[[[3e18]]]])
    k = mx.array([[[[3e18], [-3e18], [2.9e18]]]])
    v = mx.array([[[[1.0], [2.0], [3.0]]]])
    assert by_powers.attention(q, k, v, scale=1.0).item() == 1.0


def test_other_types_are_left_to_mlx() -> None:
    half = mx.random.normal((1, 2, 3, 16)).astype(mx.float16)
    ours = by_powers.attention(half, half, half, scale=0.25, mask="causal")
    assert ours.dtype == mx.float16
    assert mx.array_equal(ours, _mlx_attention(half, half, half, scale=0.25, mask="causal"))
