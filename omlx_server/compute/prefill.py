"""Prompts on their way into the caches, chunk by chunk.

A chunk that does not end its prompt runs alone: it is large enough to fill the machine. Last
chunks of similar shape run together as one right-padded batch, because short prompts one by one
waste most of a forward pass.
"""

from collections.abc import Callable, Iterable, Sequence

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.batch import Prefilled
from omlx_server.compute.caches import Caches
from omlx_server.core.step import Chunk, SequenceId

# Padding may add this share to the tokens of a group.
_MAX_PADDING = 0.3
# A longer chunk fills the machine by itself, and the scores of a group would outgrow its caches:
# 4 x 512 tokens in one forward took 1.4 times as long as one after the other.
_MAX_GROUPED_TOKENS = 256
# Rows of a group are left-padded to one cached length; further apart they run by themselves.
_MAX_START_SPREAD = 256


class Prefiller:
    """Holds the solo caches of unfinished prompts."""

    def __init__(self, model: nn.Module, *, batchable: bool) -> None:
        self._model = model
        self._batchable = batchable
        self._max_padding = _MAX_PADDING if cache_ops.can_pad(cache_ops.new_caches(model)) else 0.0
        self._unfinished: dict[SequenceId, Caches] = {}
        self._restored: dict[SequenceId, Callable[[], Caches]] = {}

    @property
    def count(self) -> int:
        return len(self._unfinished) + len(self._restored)

    def clear(self) -> None:
        self._unfinished.clear()
        self._restored.clear()

    def drop(self, ids: Iterable[SequenceId]) -> None:
        """Forget prompts. Ids that are not here are ignored."""
        for id in ids:
            self._unfinished.pop(id, None)
            self._restored.pop(id, None)

    def restore(self, prefill: SequenceId, caches: Caches) -> None:
        """Start a prefill from rebuilt caches."""
        self._unfinished[prefill] = caches

    def restore_later(self, prefill: SequenceId, rebuild: Callable[[], Caches]) -> None:
        """The same for a prefill that will be merged with others, rebuilt when it runs: who held
        its caches would keep every layer of them in memory while the batch is made of them."""
        self._restored[prefill] = rebuild

    def unfinished(self, prefill: SequenceId) -> Caches | None:
        """The caches of a prompt that is not wholly computed."""
        return self._unfinished.get(prefill)

    def group(self, chunks: Sequence[Chunk]) -> list[tuple[Chunk, ...]]:
        """Which chunks run in one forward. Does not modify."""
        groups: list[tuple[Chunk, ...]] = []
        for chunk in sorted(chunks, key=lambda c: (len(c.joins) != 1, c.start, len(c.tokens))):
            if groups and self._fits(groups[-1], chunk):
                groups[-1] = (*groups[-1], chunk)
            else:
                groups.append((chunk,))
        return groups

    def run(self, group: Sequence[Chunk]) -> Prefilled | None:
        """Launch one forward over the group. Returns its rows if this completes their prompts."""
        if len(group) == 1:
            return self._run_solo(group[0])
        caches = cache_ops.merge([self._caches(chunk.prefill) for chunk in group])
        _forward_padded(self._model, [chunk.tokens for chunk in group], caches)
        self.drop(chunk.prefill for chunk in group)
        return Prefilled(tuple(chunk.joins[0] for chunk in group), caches, solo=False)

    def _fits(self, group: Sequence[Chunk], chunk: Chunk) -> bool:
        if not self._batchable or len(chunk.joins) != 1 or len(group[0].joins) != 1:
            return False
        if not group[0].tokens or not chunk.tokens:
            return False
        members = (*group, chunk)
        starts = [member.start for member in members]
        lengths = [len(member.tokens) for member in members]
        padded = max(lengths) * len(lengths)
        if max(lengths) > _MAX_GROUPED_TOKENS:
            return False
        close = max(starts) - min(starts) <= _MAX_START_SPREAD
        return close and padded <= (1 + self._max_padding) * sum(lengths)

    def _caches(self, prefill: SequenceId) -> Caches:
        rebuild = self._restored.get(prefill)
        if rebuild is not None:
            return rebuild()
        return self._unfinished.get(prefill) or cache_ops.new_caches(self._model)

    def _run_solo(self, chunk: Chunk) -> Prefilled | None:
        caches = self._caches(chunk.prefill)
        self.drop([chunk.prefill])
        if chunk.tokens:
            self._model(mx.array([chunk.tokens]), cache=caches)
            cache_ops.evaluate(caches, wait=False)
        if chunk.joins:
            return Prefilled(chunk.joins, caches, solo=True)
        self._unfinished[chunk.prefill] = caches
        return None


def _forward_padded(model: nn.Module, rows: Sequence[Sequence[int]], caches: Caches) -> None:
    """One forward over rows of different lengths, padded on the right with zeros."""
    lengths = [len(row) for row in rows]
    tokens = mx.array([[*row, *([0] * (max(lengths) - len(row)))] for row in rows])
    cache_ops.forward_padded(model, tokens, lengths, caches)
    cache_ops.evaluate(caches, wait=False)
