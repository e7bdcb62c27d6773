"""Drafts by a draft model (compute/architectures/pair.py). Its caches take in the tokens of plain
steps late, when the next draft needs them or too many are `Behind`.

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
from omlx_server.compute.drafting.base import Drafted, until_end, without_logprobs
from omlx_server.compute.hardware import device
from omlx_server.compute.sampler import SamplingRow, sample
from omlx_server.core.memory.kv import MOST_BEHIND


class Behind:
    """The tokens that the drafter lacks, row by row: those on the host, then one for each unread
    step, int32 [B] on the device. The length is that of the longest row."""

    def __init__(self, rows: int = 0) -> None:
        self._host_tokens: list[list[int]] = [[] for _ in range(rows)]
        self._unread_steps: list[mx.array] = []

    def __len__(self) -> int:
        return max(self.lengths, default=0)

    @property
    def rows(self) -> int:
        return len(self._host_tokens)

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) + len(self._unread_steps) for tokens in self._host_tokens]

    def stepped(self, tokens: mx.array) -> None:
        """Append a step's tokens, without reading them."""
        self._unread_steps.append(tokens)

    def verified(self, fed: Sequence[Sequence[int]]) -> None:
        """Append what verification left of the tokens fed to each row."""
        self._read_steps()
        for tokens, more in zip(self._host_tokens, fed, strict=True):
            tokens.extend(more)

    def keep(self, rows: Sequence[int]) -> None:
        self._host_tokens = [self._host_tokens[row] for row in rows]
        indices = mx.array(list(rows))
        self._unread_steps = [step[indices] for step in self._unread_steps]

    def add(self, rows: int) -> None:
        self._read_steps()
        self._host_tokens += [[] for _ in range(rows)]

    def _read_steps(self) -> None:
        for step in self._unread_steps:
            for tokens, token in zip(self._host_tokens, device.to_host(step), strict=True):
                tokens.append(token)
        self._unread_steps = []

    def tokens(self) -> mx.array:
        """Return int32 [B, T], padded on the right."""
        host_tokens = cache_ops.padded(self._host_tokens)
        if not self._unread_steps:
            return host_tokens
        padded = mx.concatenate([host_tokens, mx.stack(self._unread_steps, axis=1)], axis=1)
        counts, width = [len(row) for row in self._host_tokens], padded.shape[1]
        if min(counts) == host_tokens.shape[1]:
            return padded
        # Each row's steps follow its own tokens on the host, not the padding after these.
        indices = [
            [at if at < count else at + host_tokens.shape[1] - count for at in range(width)]
            for count in counts
        ]
        return mx.take_along_axis(padded, mx.minimum(mx.array(indices), width - 1), axis=1)


class ModelDrafter:
    """A `Drafter` that runs a pair's draft model, whose logits it fits to `vocab` tokens."""

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
        skipped = 1 if self._has_newest else 0  # drafting fed the newest tokens
        rows = zip(fed, right, strict=True)
        self.behind.verified([row[skipped : 1 + count] for row, count in rows])
        # After an own draft, the first forward of the next one takes in what is behind.
        if len(self.behind) >= MOST_BEHIND and not self._has_newest:
            self.catch_up(caches)
        self._has_newest = False

    def draft(
        self, newest: mx.array, rows: Sequence[SamplingRow], counts: Sequence[int], caches: Caches
    ) -> Drafted:
        begun, depth = time.perf_counter(), max(counts)
        # The first forward makes logits for all that it feeds, at most as many as the verifying
        # step, for which memory is planned; catching up makes none.
        catches_up = len(self.behind) > depth
        if catches_up:
            self.catch_up(caches)
        drafting_rows = without_logprobs(rows)
        drafted = [sample(self._first_logits(newest, caches), drafting_rows).tokens]
        self._has_newest = True
        undo_per_cache = cache_ops.prepare_undo_of_forwards(caches) if depth > 1 else []
        for row in drafting_rows:
            row.constraint = None  # a grammar's mask is known for the first token only
        for _ in range(depth - 1):
            logits = self._pair.draft(drafted[-1][:, None], caches)[:, -1]
            drafted.append(sample(self._fit_vocabulary(logits), drafting_rows).tokens)
        tokens: list[list[int]] = device.to_host(mx.stack(drafted, axis=1))
        for undo in undo_per_cache:
            undo([depth - 1] * len(rows))
        drafts = until_end(rows, tokens, counts)
        return Drafted(drafts, depth + catches_up, time.perf_counter() - begun)

    def _first_logits(self, newest: mx.array, caches: Caches) -> mx.array:
        """Feed what is behind and the newest tokens; return the logits [B, V] after these."""
        tokens, lengths = newest[:, None], [1] * len(newest)
        if len(self.behind):
            self.behind.stepped(newest)
            tokens, lengths = self.behind.tokens(), self.behind.lengths
        logits = self._feed(tokens, lengths, caches)
        self.behind = Behind(len(lengths))
        last = mx.array(lengths)[:, None, None] - 1
        return self._fit_vocabulary(mx.take_along_axis(logits, last, axis=1)[:, 0])

    def _feed(self, tokens: mx.array, lengths: Sequence[int], caches: Caches) -> mx.array:
        """Feed lengths[i] tokens of row i; the caches don't keep the padding after them."""
        logits = cache_ops.forward_decoding(self._pair.draft, tokens, lengths, caches)
        width = tokens.shape[1]
        if min(lengths) < width:
            cache_ops.take_out_drafts(caches, [width - length for length in lengths])
        return logits

    def _fit_vocabulary(self, logits: mx.array) -> mx.array:
        """Cut or pad the drafter's logits to the target's vocabulary."""
        missing = self._vocab - logits.shape[1]
        if missing > 0:
            return mx.pad(logits, [(0, 0), (0, missing)], constant_values=float("-inf"))
        return logits[:, : self._vocab]
