"""Attention of all tokens of a text, or of all patches of an image, to all of them, with bounded
memory."""

from functools import partial

import mlx.core as mx

from omlx_server.compute.hardware import device_policy

MOST_SCORES = 1 << 26
"""So many scores are made at a time where attention is not fused: 256 MB in float32. With 16 heads
all of those of a text of 8,192 tokens would take 4 GB, of an image of 16,384 patches 16 GB."""


def attend(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None, most_scores: int = MOST_SCORES
) -> mx.array:
    """Attention [B, H, L, D] for q, k, v [B, H, L, D], whose scores are divided by the root of D.
    `mask` is bool [B, 1, 1, L] (True is seen) or is added. Where the device fuses attention for
    heads of some width, those that are narrower are padded to it. Elsewhere more than `most_scores`
    scores are made in pieces of the queries. It waits for each piece, because one evaluation of all
    of them would hold the scores of several at once."""
    batch, heads, length, width = q.shape
    attention = partial(mx.fast.scaled_dot_product_attention, scale=width**-0.5, mask=mask)
    fused = next((most for most in device_policy.current().fused_widths if most >= width), None)
    if fused is not None:
        found: mx.array = attention(*(_padded(array, fused) for array in (q, k, v)))
        return found[..., :width]
    rows = max(1, most_scores // (batch * heads * length))
    if rows >= length:
        whole: mx.array = attention(q, k, v)
        return whole
    pieces = list[mx.array]()
    for i in range(0, length, rows):
        pieces.append(attention(q[:, :, i : i + rows], k, v))
        mx.eval(pieces[-1])
    return mx.concatenate(pieces, axis=2)


def _padded(array: mx.array, width: int) -> mx.array:
    """The array [B, H, L, D] with zeros behind, up to `width`: they change no score."""
    more = width - array.shape[-1]
    return mx.pad(array, [(0, 0), (0, 0), (0, 0), (0, more)]) if more else array
