"""The rows that decode together, which join and leave between steps. Invariants: `rows`, the newest
tokens [B] and the rows of every cache are in the same order. A lone first row keeps its solo
caches. Recurrent rows without a state yet come last, in their own caches."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute import sampler
from omlx_server.compute.adapters.adapters import AdapterStore
from omlx_server.compute.architectures.pair import Headed, Pair, members
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import Cache
from omlx_server.compute.drafting.base import Drafted, Drafter
from omlx_server.compute.drafting.heads_drafter import HeadsDrafter
from omlx_server.compute.drafting.model_drafter import ModelDrafter
from omlx_server.compute.forward_parts import ForwardParts
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.spans import Runs
from omlx_server.compute.prefill import Prefilled
from omlx_server.compute.sampler import Sampled, SamplingRow, sample, unsampled
from omlx_server.compute.verify import (
    Feed,
    VerifyingDecode,
    make_feeds,
    sample_after_each,
    tokens_to_feed,
)
from omlx_server.compute.vision.image_forward import with_shifted_rows
from omlx_server.core.ranks import ALONE, Ranks
from omlx_server.core.request import SampledRow
from omlx_server.core.step import SequenceId

Decoded = Sampled | VerifyingDecode
NO_DRAFTS: Mapping[Any, Any] = MappingProxyType({})


class LiveBatch:
    """The live rows, their caches, and the drafter if the model has one."""

    def __init__(
        self,
        model: nn.Module,
        vocab: int,
        runs: Runs | None = None,
        block_size: int = 1,
        adapters: AdapterStore | None = None,
        ranks: Ranks = ALONE,
        parts: ForwardParts | None = None,
    ) -> None:
        self._parts = parts or ForwardParts(model)
        self._ranks = ranks  # only the first of several samples
        self._adapters = adapters or AdapterStore()
        self._model = model
        self._vocab = vocab
        self._runs = Runs() if runs is None else runs
        self._block_size = block_size
        self.caches: Caches = []
        self._stateless: Prefilled | None = None  # recurrent rows that have no state yet
        self._recurrent = cache_ops.is_recurrent(cache_ops.new_caches(model))
        self._target = members(model)[0]
        # The drafter's caches follow the target's.
        self._target_count = model.own_caches if isinstance(model, Pair | Headed) else None
        self._drafter = _drafter_of(model, vocab)
        self._hidden: mx.array | None = None  # of the newest decode, where the drafter needs it
        self.drafted: Drafted | None = None  # of the newest decode
        self.clear()

    def clear(self) -> None:
        cache_ops.hand_over(self.caches)
        if self._stateless is not None:
            cache_ops.hand_over(self._stateless.caches)
        self.rows: list[SamplingRow] = []
        self.caches = []
        self._solo = False
        self._stateless = None
        self._tokens = mx.array([], dtype=mx.int32)
        self.has_newcomers = False
        if self._drafter is not None:
            self._drafter.clear()

    @property
    def ids(self) -> tuple[SequenceId, ...]:
        return tuple([row.id for row in self.rows])

    def index_of(self, id: SequenceId) -> int | None:
        """Return a row's index; None when it is not live."""
        return next((i for i, row in enumerate(self.rows) if row.id == id), None)

    def cached_tokens(self, index: int) -> int:
        return self.rows[index].position - 1

    @property
    def _target_caches(self) -> Caches:
        return self.caches[: self._target_count]

    @property
    def _drafter_caches(self) -> Caches:
        return self.caches[self._target_count :] if self._target_count is not None else []

    def is_behind(self, id: SequenceId) -> bool:
        index = self.index_of(id)
        return index is not None and self._drafter is not None and self._drafter.is_behind(index)

    def catch_up(self) -> None:
        """Feed the drafter what rows decoded without it. Does not wait."""
        if self._drafter is not None and not cache_ops.lost_rows(self._drafter_caches):
            self._drafter.catch_up(self._drafter_caches)

    @property
    def nbytes(self) -> int:
        return cache_ops.nbytes(self.caches) + sampler.nbytes(self.rows)

    @property
    def _begun_count(self) -> int:
        return len(self.rows) - (len(self._stateless.joins) if self._stateless else 0)

    def drop(self, ids: Collection[SequenceId]) -> None:
        keep = [i for i, row in enumerate(self.rows) if row.id not in ids]
        if len(keep) == len(self.rows):
            return
        if not keep:
            self.clear()
            return
        self._keep_rows(keep)
        self._tokens = self._tokens[mx.array(keep)]
        self.rows = [self.rows[i] for i in keep]
        if self._drafter is not None:
            self._drafter.keep(keep)

    def join(self, arrivals: Sequence[Prefilled]) -> None:
        """Add all arrivals of a step. A decode must come between two calls."""
        if not arrivals:
            return
        self.catch_up()
        stateless = [arrival for arrival in arrivals if self._recurrent and arrival.begins]
        for arrival in arrivals:
            if arrival not in stateless:
                self._add_rows(arrival)
                self._add_caches(arrival)
        if stateless:
            self._add_stateless(stateless)
        if self._drafter is not None:
            self._drafter.add(sum(len(arrival.joins) for arrival in arrivals))

    def _add_rows(self, arrival: Prefilled) -> None:
        inputs = mx.array([join.context[-1] for join in arrival.joins], dtype=mx.int32)
        self._tokens = mx.concatenate([self._tokens, inputs])
        self.rows += [SamplingRow.of(join, self._vocab) for join in arrival.joins]
        self.has_newcomers = True

    def _add_stateless(self, arrivals: Sequence[Prefilled]) -> None:
        assert self._stateless is None, "a batch is decoded before others join"
        if not self.rows and len(arrivals) == 1:
            self._add_rows(arrivals[0])
            self._add_caches(arrivals[0])
            return
        caches_of_rows = [arrival.caches for arrival in arrivals for _ in arrival.joins]
        joins = tuple(join for arrival in arrivals for join in arrival.joins)
        merged = Prefilled(joins, cache_ops.merge(caches_of_rows), solo=False)
        was_empty = not self.rows
        self._add_rows(merged)
        if was_empty:
            self._add_caches(merged)
        else:
            self._stateless = merged

    @property
    def is_constrained(self) -> bool:
        """Whether a row's next token must be known before another is sampled."""
        return any(row.constraint is not None for row in self.rows)

    def decode(
        self,
        drafts: Mapping[SequenceId, Sequence[int]] = NO_DRAFTS,
        asks: Mapping[SequenceId, int] = NO_DRAFTS,
    ) -> list[SampledRow]:
        """Decode once, and wait for the tokens."""
        feeds = self.draft_feeds(drafts, asks) if drafts or asks else []
        return self.read(self.verify(feeds) if feeds else self.sample(self.feed_newest()))

    def draft_feeds(
        self, drafts: Mapping[SequenceId, Sequence[int]], asks: Mapping[SequenceId, int]
    ) -> list[Feed]:
        """Return each row's newest token and draft; empty without drafts. Waits for the drafter."""
        self.drafted = None
        if asks and self._drafter is not None and self._stateless is None:
            counts = [asks.get(row.id, 0) for row in self.rows]
            drafted = self._drafter.draft(self._tokens, self.rows, counts, self._drafter_caches)
            drafts = {**dict(zip(self.ids, drafted.tokens, strict=True)), **drafts}
            self.drafted = drafted
        feeds = make_feeds(self.rows, drafts) if drafts and self._stateless is None else []
        return feeds if any(feed.draft for feed in feeds) else []

    def feed_newest(self) -> mx.array:
        """Feed each row's newest token. Return logits [B, V], not launched."""
        self.has_newcomers = False
        if self._stateless is not None:
            return self._feed_in_two_parts(self._stateless)
        tokens = self._ranks.shared(self._tokens)[:, None]
        run = self._run_model if self._parts.limit is None else self._run_in_parts
        logits = run(tokens, self._target_caches, self.rows)[:, -1, :]
        if self._drafter is not None:
            self._drafter.stepped(self._tokens, self._hidden, self._drafter_caches)
        return logits

    def sample(self, logits: mx.array) -> Sampled:
        """Launch the samples of a decode, once all constraints have the tokens before."""
        sampled = sample(logits, self.rows) if self._ranks.leads else unsampled(logits, self.rows)
        self._tokens = sampled.tokens
        device.launch(sampled.arrays())
        return sampled

    def verify(self, feeds: list[Feed]) -> VerifyingDecode:
        """Launch a decode with drafts. Its tokens must be read before the next one."""
        self.has_newcomers = False
        tokens = self._ranks.shared(tokens_to_feed(self._tokens, feeds))
        put_back = cache_ops.prepare_undo(self._target_caches)
        lengths = [len(feed.states) for feed in feeds]
        forward = partial(self._run_in_parts, rows=self.rows)
        logits = cache_ops.forward_decoding(forward, tokens, lengths, self._target_caches)
        sampled = sample_after_each(logits, feeds, samples=self._ranks.leads)
        return VerifyingDecode(feeds, sampled, tokens, put_back, self._hidden)

    def read(self, decoded: Decoded) -> list[SampledRow]:
        """Wait for a decode's tokens, and take back wrong drafts. Call it once."""
        if isinstance(decoded, Sampled):
            return decoded.to_host()
        rows = decoded.to_host()
        self.accept(decoded, [row.accepted for row in rows], [row.tokens[-1].id for row in rows])
        return rows

    def accept(
        self, verifying: VerifyingDecode, right: Sequence[int], newest: Sequence[int]
    ) -> None:
        """Keep each row's first right[i] drafted tokens, and feed newest[i] next."""
        self._ranks.accept(right, newest)
        tokens, feeds, put_back = verifying.tokens, verifying.feeds, verifying.put_back
        width = tokens.shape[1]
        excess = [width - 1 - count for count in right]
        self.rows = [feed.states[count] for feed, count in zip(feeds, right, strict=True)]
        if self._drafter is not None:
            self._drafter.verified(tokens, verifying.hidden, right, self._drafter_caches)
        self._tokens = mx.array(list(newest), dtype=mx.int32)
        # Recurrent states can't be shortened: where a draft was wrong, they go back and run again.
        if put_back and any(map(_has_wrong_draft, feeds, right)):
            self._recompute_accepted(verifying, right)
        elif any(excess):
            cache_ops.take_out_drafts(self._target_caches, excess)

    def _recompute_accepted(self, verifying: VerifyingDecode, right: Sequence[int]) -> None:
        """Put rows with a wrong draft back, and feed them their accepted tokens again. Waits."""
        tokens, feeds = verifying.tokens, verifying.feeds
        fed = tokens.shape[1]
        is_wrong = [_has_wrong_draft(feed, count) for feed, count in zip(feeds, right, strict=True)]
        padding = [fed - len(feed.states) for feed in feeds]
        forgotten = [fed if bad else unused for bad, unused in zip(is_wrong, padding, strict=True)]
        for put_back in verifying.put_back:
            put_back(forgotten)
        lengths = [1 + count if bad else 0 for bad, count in zip(is_wrong, right, strict=True)]
        width, caches = max(lengths), self._target_caches
        forward = self._forward_of(self.rows)
        cache_ops.forward_decoding(forward, tokens[:, :width], lengths, caches)
        if min(lengths) < width:
            cache_ops.take_out_drafts(caches, [width - length for length in lengths])
        cache_ops.evaluate(caches, wait=True)

    def _run_in_parts(
        self, tokens: mx.array, cache: Caches, rows: Sequence[SamplingRow]
    ) -> mx.array:
        with self._parts.of_rows([(tokens.shape[1], row.position - 1) for row in rows]):
            return self._run_model(tokens, cache, rows)

    def _run_model(self, tokens: mx.array, cache: Caches, rows: Sequence[SamplingRow]) -> mx.array:
        if not isinstance(self._model, Headed):
            return self._forward_of(rows)(tokens, cache=cache)
        decode = self._adapters.adapted(self._model.decode, [row.adapter for row in rows])
        logits, self._hidden = decode(tokens, cache)
        return logits

    def _forward_of(self, rows: Sequence[SamplingRow]) -> Callable[..., mx.array]:
        forward = with_shifted_rows(self._target, [row.shift for row in rows])
        for row in rows:
            if row.adapter is not None:  # else a step makes no call for adapters
                return self._adapters.adapted(forward, [row.adapter for row in rows])
        return forward

    def _feed_in_two_parts(self, stateless: Prefilled) -> mx.array:
        """Feed rows with and without a state apart, then make them one batch."""
        self.catch_up()
        tokens, begun = self._ranks.shared(self._tokens)[:, None], self._begun_count
        parts = (slice(begun), self.caches), (slice(begun, None), stateless.caches)
        logits, hidden = list[mx.array](), list[mx.array]()
        for rows, caches in parts:
            if isinstance(self._model, Pair):
                part = self._model(tokens[rows], caches, self._forward_of(self.rows[rows]))
            else:
                part = self._run_model(tokens[rows], caches[: self._target_count], self.rows[rows])
            logits.append(part[:, -1, :])
            hidden += [self._hidden] if self._hidden is not None else []
        self._stateless = None
        self._add_caches(stateless)
        if hidden and self._drafter is not None:
            self._drafter.stepped(self._tokens, mx.concatenate(hidden), self._drafter_caches)
        return mx.concatenate(logits)

    def _add_caches(self, arrival: Prefilled) -> None:
        count = len(arrival.joins)
        if not self.caches and count == 1 and arrival.solo:
            cache_ops.begin_decode(arrival.caches)
            self.caches, self._solo = arrival.caches, True
            return
        layers = self.caches or [None] * len(arrival.caches)
        incoming = self._fork_arrival(arrival) if arrival.solo else [arrival.caches]
        merged = _merge_layers(layers, incoming, own_solo=self._solo, solo=arrival.solo)
        cache_ops.compute_rearranged(merged)
        self.caches, self._solo = layers, False

    def _fork_arrival(self, arrival: Prefilled) -> list[Caches]:
        count, caches = len(arrival.joins), arrival.caches[:]
        arrival.caches.clear()
        if count == 1:
            return [caches]
        length = len(arrival.joins[0].context) - 1
        boundary = length // self._block_size * self._block_size
        return cache_ops.fork(caches, count, boundary, self._runs)

    def _keep_rows(self, rows: Sequence[int]) -> None:
        begun = self._begun_count
        if self._stateless is not None:
            staying = [row - begun for row in rows if row >= begun]
            if not staying:
                cache_ops.hand_over(self._stateless.caches)
            self._stateless = self._stateless.keep_rows(staying) if staying else None
        staying_begun = [row for row in rows if row < begun]
        if not staying_begun:
            assert self._stateless is not None
            cache_ops.hand_over(self.caches)
            self.caches, self._solo = self._stateless.caches, False
            self._stateless = None
            return
        if len(staying_begun) < begun:
            cache_ops.keep_rows(self.caches, staying_begun)
            cache_ops.compute_rearranged(self.caches)


def _drafter_of(model: nn.Module, vocab: int) -> Drafter | None:
    if isinstance(model, Pair):
        return ModelDrafter(model, vocab)
    return HeadsDrafter(model) if isinstance(model, Headed) else None


def _merge_layers(
    layers: Caches, incoming: list[Caches], *, own_solo: bool, solo: bool
) -> Iterator[Cache]:
    for number in range(len(layers)):
        layers[number] = _merge_layer(layers, incoming, number, own_solo=own_solo, solo=solo)
        yield layers[number]


def _merge_layer(
    layers: Caches, incoming: list[Caches], number: int, *, own_solo: bool, solo: bool
) -> Cache:
    """Return one layer's merged cache. The old ones leave their lists, to be freed once copied."""
    own, layers[number] = layers[number], None
    joining = [caches[number] for caches in incoming]
    for caches in incoming:
        caches[number] = None
    joining_batch = joining[0].merge(joining) if solo else joining[0]
    if own is None:
        return joining_batch
    batch = own.merge([own]) if own_solo else own
    batch.extend(joining_batch)
    return batch


def _has_wrong_draft(feed: Feed, right: int) -> bool:
    return right < len(feed.draft)
