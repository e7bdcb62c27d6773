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
    fused_width = next((w for w in device_policy.current().fused_widths if w >= width), None)
    if fused_width is not None:
        padded: mx.array = attention(*(_pad_width(array, fused_width) for array in (q, k, v)))
        return padded[..., :width]
    rows = max(1, most_scores // (batch * heads * length))
    if rows >= length:
        answer: mx.array = attention(q, k, v)
        return answer
    pieces = list[mx.array]()
    for first in range(0, length, rows):
        pieces.append(attention(q[:, :, first : first + rows], k, v))
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


def _pad_width(array: mx.array, width: int) -> mx.array:
    missing = width - array.shape[-1]
    return mx.pad(array, [(0, 0), (0, 0), (0, 0), (0, missing)]) if missing else array
