"""Penalties, logit_bias and bans, each in one computation for all rows that ask for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from omlx_server.core.request import SamplingParams

_IN_PROMPT = 0.5


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
