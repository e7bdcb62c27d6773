"""Attention of all tokens or image patches to all of them, with bounded memory."""

from functools import partial

import mlx.core as mx

from omlx_server.compute.hardware import device_policy
from omlx_server.core.memory.encoder import EncoderShape

MOST_SCORES = 1 << 26  # 256 MB in float32; a text of 8,192 tokens has 4 GB with 16 heads


def attend(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None, most_scores: int = MOST_SCORES
) -> mx.array:
    """Return attention [B, H, L, D] for q, k, v [B, H, L, D]. `mask` is bool [B, 1, 1, L] (True
    is seen) or added. Unfused, it makes at most `most_scores` scores at a time, and waits."""
    batch, heads, length, width = q.shape
    attention = partial(mx.fast.scaled_dot_product_attention, scale=width**-0.5, mask=mask)
    fused = next((most for most in device_policy.current().fused_widths if most >= width), None)
    if fused is not None:
        padded: mx.array = attention(*(_padded(array, fused) for array in (q, k, v)))
        return padded[..., :width]
    rows = max(1, most_scores // (batch * heads * length))
    if rows >= length:
        whole: mx.array = attention(q, k, v)
        return whole
    pieces = list[mx.array]()
    for i in range(0, length, rows):
        pieces.append(attention(q[:, :, i : i + rows], k, v))
        mx.eval(pieces[-1])
    return mx.concatenate(pieces, axis=2)


def encoder_shape(
    layers: int, hidden: int, intermediate: int, heads: int, width: int
) -> EncoderShape:
    """Return the shape of an encoder with this attention, whose numbers have `width` bytes."""
    return EncoderShape(
        layers,
        hidden,
        intermediate,
        heads,
        heads,
        hidden // heads,
        width,
        causal=False,
        most_scores=MOST_SCORES,
    )


def _padded(array: mx.array, width: int) -> mx.array:
    more = width - array.shape[-1]
    return mx.pad(array, [(0, 0), (0, 0), (0, 0), (0, more)]) if more else array
