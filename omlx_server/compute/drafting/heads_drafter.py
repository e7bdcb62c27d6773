"""Drafts by a model's own heads (compute/architectures/pair.py), which take in each step at
once."""

import time
from collections.abc import Sequence

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.architectures.pair import Headed
from omlx_server.compute.caches import Caches
from omlx_server.compute.drafting.base import Drafted, until_end, without_logprobs
from omlx_server.compute.hardware import device
from omlx_server.compute.sampler import SamplingRow, sample


class HeadsDrafter:
    """A `Drafter` that keeps the hidden states [B, 1, D] before the newest tokens."""

    def __init__(self, model: Headed) -> None:
        self._model = model
        self.clear()

    def clear(self) -> None:
        self._hidden_before = self._model.no_hidden(0)
        self._has_newest = False  # whether the step under way has drafted with the newest tokens

    def keep(self, rows: Sequence[int]) -> None:
        self._hidden_before = self._hidden_before[mx.array(list(rows))]

    def add(self, rows: int) -> None:
        self._hidden_before = mx.concatenate([self._hidden_before, self._model.no_hidden(rows)])

    def is_behind(self, row: int) -> bool:
        return False

    def catch_up(self, caches: Caches) -> None:
        pass

    def stepped(self, tokens: mx.array, hidden: mx.array | None, caches: Caches) -> None:
        assert hidden is not None
        if not self._has_newest:
            # For the caches alone: the logits are lazy and never computed.
            self._model.draft(tokens[:, None], self._hidden_before, caches)
            cache_ops.evaluate(caches, wait=False)
        self._hidden_before, self._has_newest = hidden, False

    def draft(
        self, newest: mx.array, rows: Sequence[SamplingRow], counts: Sequence[int], caches: Caches
    ) -> Drafted:
        begun, depth, drafting_rows = time.perf_counter(), max(counts), without_logprobs(rows)
        tokens, hidden, drafted = newest, self._hidden_before, list[mx.array]()
        for _ in range(depth):
            logits, hidden = self._model.draft(tokens[:, None], hidden, caches)
            tokens = sample(logits[:, -1], drafting_rows).tokens
            drafted.append(tokens)
            for row in drafting_rows:
                row.constraint = None  # a grammar's mask is known for the first token only
        drafts: list[list[int]] = device.to_host(mx.stack(drafted, axis=1))
        if depth > 1:
            cache_ops.take_out_drafts(caches, [depth - 1] * len(rows))
        self._has_newest = True
        return Drafted(until_end(rows, drafts, counts), depth, time.perf_counter() - begun)

    def verified(
        self, tokens: mx.array, hidden: mx.array | None, right: Sequence[int], caches: Caches
    ) -> None:
        assert hidden is not None
        hidden_before = mx.concatenate([self._hidden_before, hidden[:, :-1]], axis=1)
        skipped = 1 if self._has_newest else 0  # drafting fed the newest tokens
        width = tokens.shape[1]
        if skipped < width:
            # For the caches alone. `draft` fed hidden states of the heads; these are the model's.
            self._model.draft(tokens[:, skipped:], hidden_before[:, skipped:], caches)
            wrong = [width - 1 - count for count in right]
            if any(wrong):
                cache_ops.take_out_drafts(caches, wrong)
            cache_ops.evaluate(caches, wait=False)
        last_right = mx.array(list(right))[:, None, None]
        self._hidden_before = mx.take_along_axis(hidden, last_right, axis=1)
        self._has_newest = False
