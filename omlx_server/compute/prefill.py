"""Computes prompts into caches, chunk by chunk."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.adapters.adapters import AdapterStore
from omlx_server.compute.architectures.pair import Pair
from omlx_server.compute.caches import Caches
from omlx_server.compute.forward_parts import ForwardParts
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.vision.vision import Vision
from omlx_server.core.scheduler.limits import Grouping
from omlx_server.core.step import Chunk, Join, SequenceId


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled:
    """Rows whose context is computed but for its last token. `solo` caches are of one sequence,
    with which all rows begin; else they are in batch form. The live batch empties the list."""

    joins: tuple[Join, ...]
    caches: Caches
    solo: bool

    @property
    def begins(self) -> bool:
        """Whether nothing is computed yet, so that recurrent caches have no state."""
        return len(self.joins[0].context) == 1

    def keep_rows(self, rows: Sequence[int]) -> "Prefilled":
        cache_ops.keep_rows(self.caches, rows)
        return Prefilled(tuple(self.joins[row] for row in rows), self.caches, self.solo)


class Prefiller:
    """The solo caches of unfinished prompts. Prompts with images need `vision`."""

    def __init__(
        self,
        model: nn.Module,
        *,
        batchable: bool,
        vision: Vision | None = None,
        adapters: AdapterStore | None = None,
        parts: ForwardParts | None = None,
    ) -> None:
        self._parts = parts or ForwardParts(model)
        self._model = model
        self._vision = vision
        self._adapters = adapters or AdapterStore()
        fresh = cache_ops.new_caches(model)
        self.grouping = Grouping(
            batchable=batchable and cache_ops.can_group(fresh),
            pads=not cache_ops.is_recurrent(fresh),
            most_tokens=device_policy.current().grouped,
        )
        self._unfinished: dict[SequenceId, Caches] = {}
        self._rebuild_later: dict[SequenceId, Callable[[], Caches]] = {}

    @property
    def count(self) -> int:
        return len(self._unfinished) + len(self._rebuild_later)

    @property
    def nbytes(self) -> int:
        return sum(map(cache_ops.nbytes, self._unfinished.values()))

    def clear(self) -> None:
        self._unfinished.clear()
        self._rebuild_later.clear()

    def drop(self, ids: Iterable[SequenceId]) -> None:
        for id in ids:
            self._unfinished.pop(id, None)
            self._rebuild_later.pop(id, None)

    def restore(self, prefill: SequenceId, caches: Caches) -> None:
        self._unfinished[prefill] = caches

    def restore_later(self, prefill: SequenceId, rebuild: Callable[[], Caches]) -> None:
        """Start a prefill from caches that `rebuild` makes when its group runs."""
        self._rebuild_later[prefill] = rebuild

    def unfinished(self, prefill: SequenceId) -> Caches | None:
        return self._unfinished.get(prefill)

    @property
    def lost(self) -> list[SequenceId]:
        return [id for id, caches in self._unfinished.items() if cache_ops.lost_rows(caches)]

    def fail(self, ids: Sequence[SequenceId], *, together: bool) -> None:
        """Handle a forward that raised. Prompts that ran `together` stay, to run alone."""
        for id in ids:
            caches = self._unfinished.get(id)
            if caches is not None and together:
                cache_ops.rejoin(caches)
            elif caches is not None:
                cache_ops.lose(caches)
        if not together:
            self.drop(ids)

    def run(self, group: Sequence[Chunk]) -> Prefilled | None:
        """Launch one forward over the group. Return its rows if they are complete."""
        if len(group) == 1:
            return self._run_solo(group[0])
        caches = cache_ops.merge([self._caches_of(chunk.prefill) for chunk in group])
        rows = [chunk.tokens for chunk in group]
        try:
            using = self._adapters.using([chunk.adapter for chunk in group])
            with using, self._parts.of_chunks(group):
                tokens, lengths = cache_ops.padded(rows), list(map(len, rows))
                cache_ops.forward_padded(self._model, tokens, lengths, caches)
                cache_ops.evaluate(caches, wait=False)
        except BaseException:
            cache_ops.lose(caches)
            raise
        self.drop(chunk.prefill for chunk in group)
        return Prefilled(tuple(chunk.joins[0] for chunk in group), caches, solo=False)

    def _caches_of(self, prefill: SequenceId) -> Caches:
        rebuild = self._rebuild_later.get(prefill)
        if rebuild is not None:
            return rebuild()
        return self._unfinished.get(prefill) or cache_ops.new_caches(self._model)

    def _run_solo(self, chunk: Chunk) -> Prefilled | None:
        caches = self._unfinished[chunk.prefill] = self._caches_of(chunk.prefill)
        if chunk.tokens:
            with self._adapters.using([chunk.adapter]), self._parts.of_chunks([chunk]):
                self._forward_chunk(chunk, caches)
            cache_ops.evaluate(caches, wait=False)
        self.drop([chunk.prefill])
        if chunk.joins:
            return Prefilled(chunk.joins, caches, solo=True)
        self._unfinished[chunk.prefill] = caches
        return None

    def _forward_chunk(self, chunk: Chunk, caches: Caches) -> None:
        tokens = mx.array([chunk.tokens])
        if not (chunk.images or chunk.shift):
            self._model(tokens, cache=caches)
            return
        assert self._vision is not None, "the model sees no images"
        forward = self._vision.with_images(chunk)
        if isinstance(self._model, Pair):
            self._model(tokens, caches, forward)
        else:
            forward(tokens, caches)
