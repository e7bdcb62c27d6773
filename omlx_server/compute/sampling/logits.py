"""Penalties, grammar masks, and the filters before a token is drawn: min_p, then top_k, then top_p.
Dropped tokens get -inf; ties with the last kept token stay. Sums are in order of the logits, the
same in any batch."""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from typing import TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from omlx_server.core.request import Constraint, SamplingParams

T = TypeVar("T")

_NEVER = float("-inf")
_EVERY = float("inf")
_LEAST_TOP_P = 1e-30  # keeps the likeliest token only
_CHUNK = 64
_THREADS = max(2, min(4, os.cpu_count() or 1))
_IN_PROMPT = 0.5


def for_rows(
    x: mx.array,
    rows: Sequence[T],
    wanted: Sequence[bool],
    change: Callable[[mx.array, list[T]], mx.array],
) -> mx.array:
    """Return x [B, V] with the `wanted` rows replaced by `change`."""
    if not any(wanted):
        return x
    if all(wanted):
        return change(x, list(rows))
    indices = [i for i, yes in enumerate(wanted) if yes]
    at = mx.array(indices)
    result = mx.array(x)
    result[at] = change(x[at], [rows[i] for i in indices])
    return result


def filtered(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    """Apply all filters to logits f32 [R, V], already divided by the temperature."""
    vocab = logits.shape[-1]
    has_top_k = [0 < row.top_k < vocab for row in rows]
    # A row with top_k gets its top_p there, too.
    has_top_p_alone = [
        row.top_p < 1 and not top_k for row, top_k in zip(rows, has_top_k, strict=True)
    ]
    logits = for_rows(logits, rows, [row.min_p > 0 for row in rows], _apply_min_p)
    logits = for_rows(logits, rows, has_top_k, _apply_top_k)
    return for_rows(logits, rows, has_top_p_alone, _apply_top_p)


def _apply_min_p(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    min_p = mx.array([[row.min_p] for row in rows])
    least = logits.max(axis=-1, keepdims=True) + mx.log(min_p)
    return mx.where(logits >= least, logits, _NEVER)


def _apply_top_k(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    counts = [row.top_k for row in rows]
    most = max(counts)
    first_kept = mx.array([[most - count] for count in counts])
    return _keep_top_p(logits, _largest(logits, most), mx.arange(most) >= first_kept, rows)


def _apply_top_p(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    return _keep_top_p(logits, mx.sort(logits, axis=-1), mx.array(True), rows)


def _keep_top_p(
    logits: mx.array, best: mx.array, eligible: mx.array, rows: Sequence[SamplingParams]
) -> mx.array:
    """Keep the likeliest tokens that reach top_p together, the last one included. `best` [R, K]
    are the largest logits, ascending; those not `eligible` are dropped."""
    top_p = mx.array([[max(row.top_p, _LEAST_TOP_P) if row.top_p < 1 else _EVERY] for row in rows])
    weights = mx.where(eligible, mx.exp(best - best[:, -1:]), 0)
    weights_above = mx.cumsum(weights, axis=-1, reverse=True, inclusive=False)
    total = weights_above[:, :1] + weights[:, :1]
    kept = eligible & (weights_above < top_p * total)
    least = mx.min(mx.where(kept, best, _EVERY), axis=-1, keepdims=True)
    return mx.where(logits >= least, logits, _NEVER)


def _largest(x: mx.array, count: int) -> mx.array:
    """Return the `count` largest of each row [R, V], ascending. They are in the `count` chunks with
    the largest maxima."""
    rows, vocab = x.shape
    if count * _CHUNK * 2 < vocab:
        if missing := -vocab % _CHUNK:
            x = mx.pad(x, [(0, 0), (0, missing)], constant_values=_NEVER)
        chunks = x.reshape(rows, -1, _CHUNK)
        best = mx.argpartition(chunks.max(axis=-1), -count, axis=-1)[:, -count:]
        x = mx.take_along_axis(chunks, best[:, :, None], axis=1).reshape(rows, -1)
    return mx.sort(mx.partition(x, -count, axis=-1)[:, -count:], axis=-1)


def side_by_side(work: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of pieces of work on some threads; they touch no array. Raises what a
    piece raised, once none runs."""
    waiting, results = deque(range(len(work))), dict[int, T]()

    def do_pieces() -> None:
        while waiting:
            try:
                number = waiting.popleft()
            except IndexError:
                return  # another thread took it
            results[number] = work[number]()

    helpers = [_pool().submit(do_pieces) for _ in range(min(_THREADS, len(work)) - 1)]
    try:
        do_pieces()
    finally:
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return [results[number] for number in range(len(work))]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, _THREADS - 1), thread_name_prefix="constraints")


def allowed(logits: mx.array, constraints: Sequence[Constraint]) -> mx.array:
    """Return logits f32 [R, V], -inf where a row's constraint forbids."""
    vocab = logits.shape[1]
    words = [_mask_words(constraint.mask(), vocab) for constraint in constraints]
    masks = mx.array(np.stack(words))
    bits = (masks[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1
    permitted = bits.reshape(len(constraints), -1)[:, :vocab] == 1
    return mx.where(permitted, logits, _NEVER)


def allows(mask: bytes, token: int) -> bool:
    """Return whether a mask has the bit of a token."""
    byte = token // 8  # words are little-endian
    return byte < len(mask) and bool(mask[byte] >> token % 8 & 1)


def _mask_words(mask: bytes, vocab: int) -> npt.NDArray[np.uint32]:
    """Return the mask's words for `vocab` tokens; those beyond its end are forbidden."""
    nbytes = -(-vocab // 32) * 4
    return np.frombuffer(mask[:nbytes].ljust(nbytes, b"\0"), dtype="<u4")


def has_penalties(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
    )


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The tokens of R rows and their penalties; immutable. `entries` f32 [R, V] have how often a
    token is in the answer, plus 0.5 if it is in the prompt. `penalties` are repetition, frequency
    and presence, each f32 [R, 1]. `row_starts` int32 [R] are offsets in the flat entries."""

    entries: mx.array
    penalties: tuple[mx.array, mx.array, mx.array]
    row_starts: mx.array

    @classmethod
    def of(cls, entries: mx.array, samplings: Sequence[SamplingParams]) -> "Table":
        rows, vocab = entries.shape
        penalties = (
            mx.array([[sampling.repetition_penalty] for sampling in samplings]),
            mx.array([[sampling.frequency_penalty] for sampling in samplings]),
            mx.array([[sampling.presence_penalty] for sampling in samplings]),
        )
        return cls(entries, penalties, mx.array([row * vocab for row in range(rows)]))

    def is_all(self, rows: Sequence[int]) -> bool:
        return list(rows) == list(range(len(self.entries)))

    def entries_of(self, rows: Sequence[int]) -> mx.array:
        return self.entries if self.is_all(rows) else self.entries[mx.array(list(rows))]

    def penalised(self, logits: mx.array) -> mx.array:
        """Return logits f32 [R, V] with the rows' penalties."""
        return _apply_penalties(logits, self.entries, *self.penalties)

    def after(self, tokens: mx.array) -> "Table":
        """Return the table with one more token int32 [R] in each row."""
        entries = self.entries.reshape(-1).at[tokens + self.row_starts].add(1.0)
        return replace(self, entries=entries.reshape(self.entries.shape))


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The tokens of one row: row `row` of a table, then `drafted` ones."""

    sampling: SamplingParams
    table: Table
    row: int = 0
    drafted: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, sampling: SamplingParams, prompt: Sequence[int], answer: Sequence[int], vocab: int
    ) -> "History":
        """Return a history with its own table, without tokens beyond the vocabulary."""
        entries = np.zeros((1, vocab), dtype=np.float32)
        entries[0, _within_vocabulary(prompt, vocab)] = _IN_PROMPT
        np.add.at(entries[0], _within_vocabulary(answer, vocab), 1)
        return cls(sampling, Table.of(mx.array(entries), [sampling]))

    def after(self, token: int) -> "History":
        return replace(self, drafted=(*self.drafted, token))


def shared_table(histories: Sequence[History]) -> Table:
    """Return one table of all histories; the one that they have, if they are its rows."""
    first = histories[0].table
    is_unchanged = all(own.table is first and not own.drafted for own in histories)
    if is_unchanged and first.is_all([own.row for own in histories]):
        return first
    groups = groupby(histories, lambda own: own.table)
    row_groups = [table.entries_of([own.row for own in members]) for table, members in groups]
    entries = mx.concatenate(row_groups) if len(row_groups) > 1 else row_groups[0]
    drafted = [(row, token) for row, own in enumerate(histories) for token in own.drafted]
    if drafted:
        rows, tokens = np.array(drafted).T
        entries = _add_at(entries, rows, tokens, np.ones(len(drafted), np.float32))
    return Table.of(entries, [history.sampling for history in histories])


@dataclass(frozen=True, slots=True, eq=False)
class Offsets:
    """Offsets of one row's logits: `values` f32 [n] at the tokens `ids` [n]."""

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]

    @classmethod
    def of(cls, values: Mapping[int, float], vocab: int) -> "Offsets | None":
        """Return None where there are none. Drops tokens beyond the vocabulary."""
        valid = {id: value for id, value in values.items() if id < vocab}
        if not valid:
            return None
        return cls(np.array([*valid], np.int64), np.array([*valid.values()], np.float32))


def shifted(logits: mx.array, rows: Sequence[Sequence[Offsets | None]]) -> mx.array:
    """Return logits f32 [R, V] with each row's offsets added."""
    pairs = [(row, offsets) for row, own in enumerate(rows) for offsets in own if offsets]
    row_numbers = np.repeat([row for row, _ in pairs], [len(offsets.ids) for _, offsets in pairs])
    ids = np.concatenate([offsets.ids for _, offsets in pairs])
    values = np.concatenate([offsets.values for _, offsets in pairs])
    return _add_at(logits, row_numbers, ids, values)


def _add_at(
    x: mx.array,
    rows: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
) -> mx.array:
    """Return x f32 [R, V] with values [n] added; a place may come more than once."""
    places = mx.array((rows * x.shape[1] + tokens).astype(np.int32))
    return x.reshape(-1).at[places].add(mx.array(values)).reshape(x.shape)


def _within_vocabulary(tokens: Sequence[int], vocab: int) -> npt.NDArray[np.int64]:
    ids = np.array(tokens, dtype=np.int64)
    return ids[ids < vocab]


@partial(mx.compile, shapeless=True)
def _apply_penalties(
    logits: mx.array,
    entries: mx.array,
    repetition: mx.array,
    frequency: mx.array,
    presence: mx.array,
) -> mx.array:
    """Repetition also counts tokens of the prompt, as in vLLM."""
    repeated = mx.where(logits > 0, logits / repetition, logits * repetition)
    logits = mx.where(entries > 0, repeated, logits) - frequency * mx.floor(entries)
    return mx.where(entries >= 1, logits - presence, logits)
