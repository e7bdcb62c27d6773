"""The only hook into MLX: models look up `mx.fast.scaled_dot_product_attention` at each call."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from omlx_server.compute.attention import by_powers
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.caches import PackedKV
from omlx_server.compute.kv.latent import RotatedScores
from omlx_server.compute.kv.row_groups import GroupPart, RowGroup
from omlx_server.compute.kv.rows import RowMasks, RowsKV, pick_rows, shared_array
from omlx_server.compute.kv.schemes.base import Mask, Partial, Scheme, Scoring, views
from omlx_server.compute.kv.spans import join_pieces
from omlx_server.core.memory.kv import FEW_QUERIES


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


def install() -> None:
    """Replace MLX's attention function by a `Dispatch`, once."""
    current = mx.fast.scaled_dot_product_attention
    if not isinstance(current, Dispatch):
        faster = by_powers.attention if device.is_cpu() else current
        mx.fast.scaled_dot_product_attention = Dispatch(faster)


class Dispatch:
    """Attention that also accepts keys and values of our caches. Other calls go to `original`."""

    # Attention of one sequence is divided into parts of so many keys, each launched by itself.
    keys_at_once: int | None = None

    def __init__(self, original: Callable[..., mx.array]) -> None:
        self.original = original

    def __call__(
        self, q: mx.array, k: Any, v: Any, *, scale: float, mask: Any = None, **options: Any
    ) -> mx.array:
        if isinstance(mask, RotatedScores):
            queries = mx.concatenate([q, mask.queries / scale], axis=-1)
            return self(queries, k, mask.keys, scale=scale, **options)
        scoring = Scoring(scale=scale, mask=mask, sinks=options.get("sinks"))
        if isinstance(k, PackedKV) and isinstance(v, PackedKV):
            if self.keys_at_once is not None and not isinstance(mask, mx.array):
                return _attend_by_keys(q, k, v, scoring, self.keys_at_once)
            return _attend_one_sequence(q, k, v, scoring)
        if isinstance(k, RowsKV) and isinstance(v, RowsKV):
            return _attend_groups(q, k, v, scoring)
        return self.original(q, k, v, scale=scale, mask=mask, **options)


def _attend_one_sequence(q: mx.array, k: PackedKV, v: PackedKV, scoring: Scoring) -> mx.array:
    if not k.spans:
        return k.scheme.attend(q, k.arrays, v.arrays, **scoring)
    tail = GroupPart(k.arrays, v.arrays, (k.arrays[0].shape[2],), (k.spans,))
    if isinstance(scoring["mask"], mx.array) or not _should_attend_in_parts(q, k.scheme):
        return attend_joined(q, tail, k.scheme, scoring)
    return attend_in_parts(q, [(tail, scoring["mask"])], k.scheme, scoring)


def _attend_by_keys(q: mx.array, k: PackedKV, v: PackedKV, scoring: Scoring, most: int) -> mx.array:
    """Attend to spans and tail in parts of at most `most` keys, each launched before the next. The
    last part has the keys of all queries, so it alone is masked."""
    last_start = max(0, k.arrays[0].shape[2] - max(q.shape[2], most))
    last = views(k.arrays, last_start, None), views(v.arrays, last_start, None)
    before = views(k.arrays, 0, last_start), views(v.arrays, 0, last_start)
    merged = k.scheme.part(q, *last, **scoring)
    for keys, values in (*(span.arrays() for span in k.spans), before):
        for start in range(0, keys[0].shape[2], most):
            device.launch(*merged.arrays)
            cut = views(keys, start, start + most), views(values, start, start + most)
            merged = merged.merged(k.scheme.part(q, *cut, scale=scoring["scale"], mask=None))
    return k.scheme.answer(merged, q.dtype)


def _attend_groups(q: mx.array, k: RowsKV, v: RowsKV, scoring: Scoring) -> mx.array:
    """Attend each group of rows apart, and put the answers in the rows' order."""
    count, scheme = q.shape[2], k.scheme
    masks = _masks_from(scoring["mask"], count)
    answers, answered_rows = list[mx.array](), list[int]()
    with_spans = list[tuple[RowGroup, GroupPart]]()
    for (group, keys), (_, values) in zip(k.groups, v.groups, strict=True):
        if group.has_spans:
            with_spans.append((group, GroupPart(keys, values, group.lengths, group.spans)))
            continue
        [queries] = pick_rows((q,), group.rows)
        mask = masks.of(count, group.lengths)
        answers.append(scheme.attend(queries, keys, values, **(scoring | {"mask": mask})))
        answered_rows += group.rows
    if with_spans and _should_attend_in_parts(q, scheme):
        rows = [row for group, _ in with_spans for row in group.rows]
        tails = [(tail, masks.of(count, tail.lengths)) for _, tail in with_spans]
        answers.append(attend_in_parts(pick_rows((q,), tuple(rows))[0], tails, scheme, scoring))
        answered_rows += rows
    elif with_spans:
        causal = scoring | {"mask": "causal" if count > 1 else None}
        for group, tail in with_spans:
            [queries] = pick_rows((q,), group.rows)
            answers.append(attend_joined(queries, tail, scheme, causal))
            answered_rows += group.rows
    if len(answers) == 1 and answered_rows == sorted(answered_rows):
        return answers[0]
    places = {row: place for place, row in enumerate(answered_rows)}
    in_order = shared_array(tuple(places[row] for row in range(len(places))))
    return mx.concatenate(answers)[in_order]


def _should_attend_in_parts(queries: mx.array, scheme: Scheme) -> bool:
    return queries.shape[2] <= FEW_QUERIES or not scheme.is_fused


def _masks_from(mask: Any, count: int) -> RowMasks:
    if isinstance(mask, RowMasks):
        return mask
    if isinstance(mask, str) or (mask is None and count == 1):
        return RowMasks()
    raise ValueError("its attention has a mask of its own")
