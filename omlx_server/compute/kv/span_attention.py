"""Attention of rows with spans before their own tokens.

Rows on one span fold their queries into one product, which is merged with what they see in their
tails. Many queries on plain numbers join a row's pieces instead, for MLX's fused kernel.
"""

from collections.abc import Sequence

import mlx.core as mx

from omlx_server.compute.kv.row_groups import GroupPart
from omlx_server.compute.kv.schemes.base import Mask, Scheme, Scoring, views
from omlx_server.compute.kv.schemes.partial import Partial
from omlx_server.compute.kv.spans import join_pieces


def attend_in_parts(
    queries: mx.array, tails: Sequence[tuple[GroupPart, Mask]], scheme: Scheme, scoring: Scoring
) -> mx.array:
    """Attend spans and tails apart: queries [R, Hq, L, D] to [R, Hq, L, Dv]. Masks are of tails."""
    start, of_tails = 0, list[Partial]()
    for tail, mask in tails:
        stop, longest = start + len(tail.lengths), max(tail.lengths)
        keys, values = views(tail.keys, 0, longest), views(tail.values, 0, longest)
        own = queries[start:stop]
        of_tails.append(scheme.part(own, keys, values, **(scoring | {"mask": mask})))
        start = stop
    merged = Partial.concatenated(of_tails)
    for rows, of_span in _attend_spans(queries, tails, scheme, scoring["scale"]):
        merged = merged.merged_in_rows(rows, of_span)
    return scheme.answer(merged, queries.dtype)


def _attend_spans(
    queries: mx.array, tails: Sequence[tuple[GroupPart, Mask]], scheme: Scheme, scale: float
) -> list[tuple[list[int], Partial]]:
    """Return the rows on each span and their attention to it, computed at once."""
    span_of, rows_of = {}, dict[tuple[int, int, int], list[int]]()
    for row, spans in enumerate(spans for tail, _ in tails for spans in tail.spans):
        for span in spans:
            span_of[span.key] = span
            rows_of.setdefault(span.key, []).append(row)
    parts = []
    for key, span in span_of.items():
        rows, (keys, values) = rows_of[key], span.arrays()
        folded = _fold_rows(queries if len(rows) == len(queries) else queries[mx.array(rows)])
        part = scheme.part(folded, keys, values, scale=scale, mask=None)
        parts.append((rows, part.unfold_rows(len(rows))))
    return parts


def _fold_rows(queries: mx.array) -> mx.array:
    rows, heads, length, dim = queries.shape
    return queries.swapaxes(0, 1).reshape(1, heads, rows * length, dim)


def attend_joined(
    queries: mx.array, tails: GroupPart, scheme: Scheme, scoring: Scoring
) -> mx.array:
    """Join each row's pieces and attend: queries [R, Hq, L, D] to [R, Hq, L, Dv]."""
    answers = []
    for row, (length, spans) in enumerate(zip(tails.lengths, tails.spans, strict=True)):
        tail = views(tails.keys, 0, length, row), views(tails.values, 0, length, row)
        keys, values = join_pieces([*(span.arrays() for span in spans), tail])
        answers.append(scheme.attend(queries[row : row + 1], keys, values, **scoring))
    return answers[0] if len(answers) == 1 else mx.concatenate(answers)
