"""The top of a distribution over a vocabulary."""

import mlx.core as mx


def likeliest(logits: mx.array, norm: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids and log-probabilities [R, count], the likeliest first. logits [R, V], their logsumexp
    [R, 1]; `count` is at least 1 and at most V."""
    ids = mx.argpartition(-logits, count - 1, axis=-1)[:, :count]
    values = mx.take_along_axis(logits, ids, axis=-1) - norm
    order = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(values, order, axis=-1)
