"""The live batch: every row in it decodes one token per step. Rows join and leave between steps.

Invariants: `rows`, the rows of `tokens` [B] and the rows of every cache are in the same order.
A lone first row keeps its solo caches (no padding, no mask); they become a batch when a second
row joins.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.sampler import Row, Sampled, sample
from omlx_server.core.step import Join, SequenceId


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled:
    """Rows whose context is computed but for the last token. `solo` caches hold one row."""

    joins: tuple[Join, ...]
    caches: Caches
    solo: bool


class LiveBatch:
    """The rows that decode together."""

    def __init__(self, model: nn.Module, vocab: int) -> None:
        self._model = model
        self._vocab = vocab
        self.clear()

    def clear(self) -> None:
        self.rows: list[Row] = []
        self._caches: Caches = []
        self._solo = False
        self._tokens = mx.array([], dtype=mx.int32)
        self.has_newcomers = False

    @property
    def ids(self) -> tuple[SequenceId, ...]:
        return tuple(row.id for row in self.rows)

    def row_of(self, id: SequenceId) -> int | None:
        """Where a row is at this moment; None when it is not live."""
        return next((i for i, row in enumerate(self.rows) if row.id == id), None)

    @property
    def caches(self) -> Caches:
        return self._caches

    def drop(self, ids: Collection[SequenceId]) -> None:
        """Rows leave. Ids that are not here are ignored."""
        keep = [i for i, row in enumerate(self.rows) if row.id not in ids]
        if len(keep) == len(self.rows):
            return
        if not keep:
            self.clear()
            return
        cache_ops.keep_rows(self._caches, keep)
        self._tokens = self._tokens[mx.array(keep)]
        self.rows = [self.rows[i] for i in keep]

    def join(self, arrivals: Sequence[Prefilled]) -> None:
        """Rows enter. Each call copies the whole batch, so arrivals come together."""
        for arrival in arrivals:
            rows = [Row.of(join, self._vocab) for join in arrival.joins]
            inputs = mx.array([join.context[-1] for join in arrival.joins], dtype=mx.int32)
            self._add_caches(arrival)
            self._tokens = mx.concatenate([self._tokens, inputs])
            self.rows += rows
            self.has_newcomers = True

    def decode(self) -> Sampled:
        """One token for every row. Launches the work and does not wait for it."""
        logits = self._model(self._tokens[:, None], cache=self._caches)[:, -1, :]
        sampled = sample(logits, self.rows)
        self._tokens = sampled.tokens
        self.has_newcomers = False
        mx.async_eval(sampled.arrays())
        return sampled

    def _add_caches(self, arrival: Prefilled) -> None:
        if not self.rows and len(arrival.joins) == 1 and arrival.solo:
            self._caches, self._solo = arrival.caches, True
            return
        incoming = arrival.caches
        if arrival.solo:
            incoming = cache_ops.merge([arrival.caches] * len(arrival.joins))
        if not self.rows:
            self._caches, self._solo = incoming, False
            return
        if self._solo:
            self._caches, self._solo = cache_ops.merge([self._caches]), False
        cache_ops.extend(self._caches, incoming)
