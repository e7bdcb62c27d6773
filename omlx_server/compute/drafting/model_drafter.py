"""Drafts by a draft model (compute/architectures/pair.py). Decoded tokens are `Behind` until
needed.

    caches hold   t0 t1 t2            behind   t3 t4           newest   t5
    draft of 3    [t3 t4 t5] -> d0,  [d0] -> d1,  [d1] -> d2   and d0, d1 are taken back
    then behind   those of d0, d1, d2 that were right
"""

import time
from collections.abc import Sequence

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.architectures.pair import Pair
from omlx_server.compute.caches import Caches
from omlx_server.compute.drafting.base import Drafted, states_of, until_end
from omlx_server.compute.hardware import device
from omlx_server.compute.sampler import SamplingRow, sample
from omlx_server.core.memory.shape import MOST_BEHIND


class Behind:
    """The tokens that the drafter lacks: those on the host, then one per row and unread step."""

    def __init__(self, rows: int = 0) -> None:
        self._known: list[list[int]] = [[] for _ in range(rows)]
        self._steps: list[mx.array] = []

    def __len__(self) -> int:
        return max(self.lengths, default=0)

    @property
    def rows(self) -> int:
        return len(self._known)

    @property
    def lengths(self) -> list[int]:
        return [len(known) + len(self._steps) for known in self._known]

    def stepped(self, tokens: mx.array) -> None:
        self._steps.append(tokens)

    def verified(self, fed: Sequence[Sequence[int]]) -> None:
        self._read()
        for known, more in zip(self._known, fed, strict=True):
            known.extend(more)

    def keep(self, rows: Sequence[int]) -> None:
        self._known = [self._known[row] for row in rows]
        indices = mx.array(list(rows))
        self._steps = [step[indices] for step in self._steps]

    def add(self, rows: int) -> None:
        self._read()
        self._known += [[] for _ in range(rows)]

    def _read(self) -> None:
        for step in self._steps:
            for known, token in zip(self._known, device.to_host(step), strict=True):
                known.append(token)
        self._steps = []

    def tokens(self) -> mx.array:
        """Return int32 [B, T], padded on the right."""
        known = cache_ops.padded(self._known)
        if not self._steps:
            return known
        steps = mx.stack(self._steps, axis=1)
        padded = mx.concatenate([known, steps], axis=1)
        counts, width = [len(row) for row in self._known], padded.shape[1]
        if min(counts) == known.shape[1]:
            return padded
        # Each row's steps follow its own known tokens, not the padding after these.
        indices = [
            [at if at < count else at + known.shape[1] - count for at in range(width)]
            for count in counts
        ]
        return mx.take_along_axis(padded, mx.minimum(mx.array(indices), width - 1), axis=1)


class ModelDrafter:
    def __init__(self, pair: Pair, vocab: int) -> None:
        self._pair = pair
        self._vocab = vocab
        self.behind = Behind()
        self._has_newest = False  # whether the step under way has drafted with the newest tokens

    def clear(self) -> None:
        self.behind, self._has_newest = Behind(), False

    def keep(self, rows: Sequence[int]) -> None:
        self.behind.keep(rows)

    def add(self, rows: int) -> None:
        self.behind.add(rows)

    def is_behind(self, row: int) -> bool:
        return self.behind.lengths[row] > 0

    def catch_up(self, caches: Caches) -> None:
        if len(self.behind):
            self._feed(self.behind.tokens(), self.behind.lengths, caches)
            cache_ops.evaluate(caches, wait=False)
            self.behind = Behind(self.behind.rows)

    def stepped(self, tokens: mx.array, hidden: mx.array | None, caches: Caches) -> None:
        if self._has_newest:  # drafted, and nothing of it could be verified
            self._has_newest = False
            return
        self.behind.stepped(tokens)
        if len(self.behind) >= MOST_BEHIND:
            self.catch_up(caches)

    def verified(
        self, tokens: mx.array, hidden: mx.array | None, right: Sequence[int], caches: Caches
    ) -> None:
        fed: list[list[int]] = device.to_host(tokens)
        first = 1 if self._has_newest else 0
        stay = zip(fed, right, strict=True)
        self.behind.verified([row[first : 1 + count] for row, count in stay])
        self._has_newest = False
        # After an own draft, the first forward of the next one takes in what is behind.
        if len(self.behind) >= MOST_BEHIND and not first:
            self.catch_up(caches)

    def draft(
        self, newest: mx.array, rows: Sequence[SamplingRow], counts: Sequence[int], caches: Caches
    ) -> Drafted:
        begun, depth = time.perf_counter(), max(counts)
        # The first forward makes logits for all that it feeds, at most as many as the verifying
        # step, for which memory is planned; catching up makes none.
        late = len(self.behind) > depth
        if late:
            self.catch_up(caches)
        states = states_of(rows)
        drafted = [sample(self._first(newest, caches), states).tokens]
        self._has_newest = True
        put_back = cache_ops.prepare_undo_of_several(caches) if depth > 1 else []
        for state in states:
            state.constraint = None
        for _ in range(depth - 1):
            logits = self._pair.draft(drafted[-1][:, None], caches)[:, -1]
            drafted.append(sample(self._fitted(logits), states).tokens)
        tokens: list[list[int]] = device.to_host(mx.stack(drafted, axis=1))
        for put in put_back:
            put([depth - 1] * len(rows))
        drafts = until_end(rows, tokens, counts)
        return Drafted(drafts, depth + late, time.perf_counter() - begun)

    def _first(self, newest: mx.array, caches: Caches) -> mx.array:
        tokens, lengths = newest[:, None], [1] * len(newest)
        if len(self.behind):
            self.behind.stepped(newest)
            tokens, lengths = self.behind.tokens(), self.behind.lengths
        logits = self._feed(tokens, lengths, caches)
        self.behind = Behind(len(lengths))
        last = mx.array(lengths)[:, None, None] - 1
        return self._fitted(mx.take_along_axis(logits, last, axis=1)[:, 0])

    def _feed(self, tokens: mx.array, lengths: Sequence[int], caches: Caches) -> mx.array:
        logits = cache_ops.forward_decoding(self._pair.draft, tokens, lengths, caches)
        width = tokens.shape[1]
        if min(lengths) < width:
            cache_ops.take_out_drafts(caches, [width - length for length in lengths])
        return logits

    def _fitted(self, logits: mx.array) -> mx.array:
        missing = self._vocab - logits.shape[1]
        if missing > 0:
            return mx.pad(logits, [(0, 0), (0, missing)], constant_values=float("-inf"))
        return logits[:, : self._vocab]
