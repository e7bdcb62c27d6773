"""The live batch: rows that decode together. Rows join and leave between steps.

Invariants: `rows`, the newest tokens [B] and the rows of every cache are in the same order. A lone
first row keeps its solo caches. Recurrent rows without a state yet come last, in their own caches.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute import sampler
from omlx_server.compute.adapters.adapters import AdapterStore
from omlx_server.compute.architectures.heads import Headed
from omlx_server.compute.architectures.pair import Pair, members
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import Cache
from omlx_server.compute.drafting.base import Drafted, Drafter
from omlx_server.compute.drafting.heads_drafter import HeadsDrafter
from omlx_server.compute.drafting.model_drafter import ModelDrafter
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.spans import Runs
from omlx_server.compute.prefill import Prefilled
from omlx_server.compute.sampler import Sampled, SamplingRow, sample, unsampled
from omlx_server.compute.verify import Feed, Verifying, feeds_of, sample_fed, tokens_of
from omlx_server.compute.vision.entering import behind
from omlx_server.core.ranks import ALONE, Ranks
from omlx_server.core.request import SampledRow
from omlx_server.core.step import SequenceId

Decoded = Sampled | Verifying
NO_DRAFTS: Mapping[Any, Any] = MappingProxyType({})


class LiveBatch:
    def __init__(
        self,
        model: nn.Module,
        vocab: int,
        runs: Runs | None = None,
        block_size: int = 1,
        adapters: AdapterStore | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Only the first of several `ranks` samples."""
        self._ranks = ranks
        self._adapters = adapters or AdapterStore()
        self._model = model
        self._vocab = vocab
        self._runs = Runs() if runs is None else runs
        self._block_size = block_size
        self._caches: Caches = []
        self._beginners: Prefilled | None = None
        self._recurrent = cache_ops.is_recurrent(cache_ops.new_caches(model))
        self._target = members(model)[0]
        self._own = model.own_caches if isinstance(model, Pair | Headed) else None
        self._drafter = _drafter_of(model, vocab)
        self._hidden: mx.array | None = None  # of the newest decode, where the drafter needs it
        self.drafted: Drafted | None = None  # of the newest decode
        self.clear()

    def clear(self) -> None:
        cache_ops.leave(self._caches)
        if self._beginners is not None:
            cache_ops.leave(self._beginners.caches)
        self.rows: list[SamplingRow] = []
        self._caches = []
        self._solo = False
        self._beginners = None
        self._tokens = mx.array([], dtype=mx.int32)
        self.has_newcomers = False
        if self._drafter is not None:
            self._drafter.clear()

    @property
    def ids(self) -> tuple[SequenceId, ...]:
        return tuple([row.id for row in self.rows])

    def row_of(self, id: SequenceId) -> int | None:
        """Return a row's index; None when it is not live."""
        return next((i for i, row in enumerate(self.rows) if row.id == id), None)

    def tokens(self, index: int) -> int:
        return self.rows[index].position - 1

    @property
    def caches(self) -> Caches:
        return self._caches

    @property
    def _decoding(self) -> Caches:
        return self._caches[: self._own]

    @property
    def _drafting(self) -> Caches:
        return self._caches[self._own :] if self._own is not None else []

    def is_behind(self, id: SequenceId) -> bool:
        index = self.row_of(id)
        return index is not None and self._drafter is not None and self._drafter.is_behind(index)

    def catch_up(self) -> None:
        """Feed the drafter what rows decoded without it. Does not wait."""
        if self._drafter is not None and not cache_ops.lost_rows(self._drafting):
            self._drafter.catch_up(self._drafting)

    @property
    def nbytes(self) -> int:
        return cache_ops.nbytes(self._caches) + sampler.nbytes(self.rows)

    @property
    def _begun(self) -> int:
        return len(self.rows) - (len(self._beginners.joins) if self._beginners else 0)

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
        beginning = [arrival for arrival in arrivals if self._recurrent and arrival.begins]
        for arrival in arrivals:
            if arrival not in beginning:
                self._add_rows(arrival)
                self._add_caches(arrival)
        if beginning:
            self._add_beginners(beginning)
        if self._drafter is not None:
            self._drafter.add(sum(len(arrival.joins) for arrival in arrivals))

    def _add_rows(self, arrival: Prefilled) -> None:
        inputs = mx.array([join.context[-1] for join in arrival.joins], dtype=mx.int32)
        self._tokens = mx.concatenate([self._tokens, inputs])
        self.rows += [SamplingRow.of(join, self._vocab) for join in arrival.joins]
        self.has_newcomers = True

    def _add_beginners(self, arrivals: Sequence[Prefilled]) -> None:
        assert self._beginners is None, "a batch is decoded before others join"
        if not self.rows and len(arrivals) == 1:
            self._add_rows(arrivals[0])
            self._add_caches(arrivals[0])
            return
        solo = [arrival.caches for arrival in arrivals for _ in arrival.joins]
        joins = tuple(join for arrival in arrivals for join in arrival.joins)
        merged = Prefilled(joins, cache_ops.merge(solo), solo=False)
        alone = not self.rows
        self._add_rows(merged)
        if alone:
            self._add_caches(merged)
        else:
            self._beginners = merged

    @property
    def constrained(self) -> bool:
        """Whether a row's next token must be known before another is sampled."""
        return any(row.constraint is not None for row in self.rows)

    def decode(
        self,
        drafts: Mapping[SequenceId, Sequence[int]] = NO_DRAFTS,
        asks: Mapping[SequenceId, int] = NO_DRAFTS,
    ) -> list[SampledRow]:
        """Decode once, and wait for the tokens."""
        feeds = self.feeds(drafts, asks) if drafts or asks else []
        return self.read(self.verify(feeds) if feeds else self.sample(self.feed()))

    def feeds(
        self, drafts: Mapping[SequenceId, Sequence[int]], asks: Mapping[SequenceId, int]
    ) -> list[Feed]:
        """Return each row's newest token and draft; empty without drafts. Waits for the drafter."""
        self.drafted = None
        if asks and self._drafter is not None and self._beginners is None:
            counts = [asks.get(row.id, 0) for row in self.rows]
            drafted = self._drafter.draft(self._tokens, self.rows, counts, self._drafting)
            drafts = {**dict(zip(self.ids, drafted.tokens, strict=True)), **drafts}
            self.drafted = drafted
        feeds = feeds_of(self.rows, drafts) if drafts and self._beginners is None else []
        return feeds if any(feed.draft for feed in feeds) else []

    def feed(self) -> mx.array:
        """Feed each row's newest token. Return logits [B, V], not launched."""
        self.has_newcomers = False
        if self._beginners is not None:
            return self._feed_beginners(self._beginners)
        tokens = self._ranks.shared(self._tokens)[:, None]
        logits = self._answer(tokens, self._decoding, self.rows)[:, -1, :]
        if self._drafter is not None:
            self._drafter.stepped(self._tokens, self._hidden, self._drafting)
        return logits

    def sample(self, logits: mx.array) -> Sampled:
        """Launch the samples of a decode, once all constraints have the tokens before."""
        sampled = sample(logits, self.rows) if self._ranks.leads else unsampled(logits, self.rows)
        self._tokens = sampled.tokens
        device.launch(sampled.arrays())
        return sampled

    def verify(self, feeds: list[Feed]) -> Verifying:
        """Launch a decode with drafts. Its tokens must be read before the next one."""
        self.has_newcomers = False
        tokens = self._ranks.shared(tokens_of(self._tokens, feeds))
        put_back = cache_ops.undo(self._decoding)
        lengths = [len(feed.states) for feed in feeds]
        answer = partial(self._answer, rows=self.rows)
        logits = cache_ops.forward_decoding(answer, tokens, lengths, self._decoding)
        sampled = sample_fed(logits, feeds, samples=self._ranks.leads)
        return Verifying(feeds, sampled, tokens, put_back, self._hidden)

    def read(self, decoded: Decoded) -> list[SampledRow]:
        """Wait for a decode's tokens, and take back wrong drafts. Call it once."""
        if isinstance(decoded, Sampled):
            return decoded.to_host()
        rows = decoded.to_host()
        self.accept(decoded, [row.accepted for row in rows], [row.tokens[-1].id for row in rows])
        return rows

    def accept(self, verifying: Verifying, right: Sequence[int], newest: Sequence[int]) -> None:
        """Keep of each row the `right` drafted tokens; `newest` is its next token."""
        self._ranks.accept(right, newest)
        tokens, feeds, put_back = verifying.tokens, verifying.feeds, verifying.put_back
        width = tokens.shape[1]
        excess = [width - 1 - count for count in right]
        self.rows = [feed.states[count] for feed, count in zip(feeds, right, strict=True)]
        if self._drafter is not None:
            self._drafter.verified(tokens, verifying.hidden, right, self._drafting)
        self._tokens = mx.array(list(newest), dtype=mx.int32)
        if put_back and any(map(_rejects, feeds, right)):
            self._compute_again(verifying, right)
        elif any(excess):
            cache_ops.cut_back(self._decoding, excess)

    def _compute_again(self, verifying: Verifying, right: Sequence[int]) -> None:
        """Restore recurrent states after wrong drafts, and compute the right part. Waits."""
        tokens, feeds = verifying.tokens, verifying.feeds
        width = tokens.shape[1]
        back = [_rejects(feed, count) for feed, count in zip(feeds, right, strict=True)]
        padding = [width - len(feed.states) for feed in feeds]
        for put in verifying.put_back:
            put([width if bad else more for bad, more in zip(back, padding, strict=True)])
        lengths = [1 + count if bad else 0 for bad, count in zip(back, right, strict=True)]
        width, caches = max(lengths), self._decoding
        answer = self._answering(self.rows)
        cache_ops.forward_decoding(answer, tokens[:, :width], lengths, caches)
        if min(lengths) < width:
            cache_ops.cut_back(caches, [width - length for length in lengths])
        cache_ops.evaluate(caches, wait=True)

    def _answer(self, tokens: mx.array, cache: Caches, rows: Sequence[SamplingRow]) -> mx.array:
        if not isinstance(self._model, Headed):
            return self._answering(rows)(tokens, cache=cache)
        decode = self._adapters.adapted(self._model.decode, [row.adapter for row in rows])
        logits, self._hidden = decode(tokens, cache)
        return logits

    def _answering(self, rows: Sequence[SamplingRow]) -> Callable[..., mx.array]:
        forward = behind(self._target, [row.shift for row in rows])
        for row in rows:
            if row.adapter is not None:  # else a step makes no call for adapters
                return self._adapters.adapted(forward, [row.adapter for row in rows])
        return forward

    def _feed_beginners(self, beginners: Prefilled) -> mx.array:
        self.catch_up()
        tokens, first = self._ranks.shared(self._tokens)[:, None], self._begun
        parts = (slice(first), self._caches), (slice(first, None), beginners.caches)
        logits, hidden = list[mx.array](), list[mx.array]()
        for rows, caches in parts:
            if isinstance(self._model, Pair):
                answer = self._model(tokens[rows], caches, self._answering(self.rows[rows]))
            else:
                answer = self._answer(tokens[rows], caches[: self._own], self.rows[rows])
            logits.append(answer[:, -1, :])
            hidden += [self._hidden] if self._hidden is not None else []
        self._beginners = None
        self._add_caches(beginners)
        if hidden and self._drafter is not None:
            self._drafter.stepped(self._tokens, mx.concatenate(hidden), self._drafting)
        return mx.concatenate(logits)

    def _add_caches(self, arrival: Prefilled) -> None:
        count = len(arrival.joins)
        if not self._caches and count == 1 and arrival.solo:
            cache_ops.begin_decode(arrival.caches)
            self._caches, self._solo = arrival.caches, True
            return
        layers = self._caches or [None] * len(arrival.caches)
        incoming = self._forked(arrival) if arrival.solo else [arrival.caches]
        joining = _join_layers(layers, incoming, own_solo=self._solo, solo=arrival.solo)
        cache_ops.compute_rearranged(joining)
        self._caches, self._solo = layers, False

    def _forked(self, arrival: Prefilled) -> list[Caches]:
        count, caches = len(arrival.joins), arrival.caches[:]
        arrival.caches.clear()
        if count == 1:
            return [caches]
        length = len(arrival.joins[0].context) - 1
        boundary = length // self._block_size * self._block_size
        return cache_ops.forked(caches, count, boundary, self._runs)

    def _keep_rows(self, rows: Sequence[int]) -> None:
        first = self._begun
        if self._beginners is not None:
            late = [row - first for row in rows if row >= first]
            if not late:
                cache_ops.leave(self._beginners.caches)
            self._beginners = self._beginners.only(late) if late else None
        rows = [row for row in rows if row < first]
        if not rows:
            assert self._beginners is not None
            cache_ops.leave(self._caches)
            self._caches, self._solo = self._beginners.caches, False
            self._beginners = None
            return
        if len(rows) < first:
            cache_ops.keep_rows(self._caches, rows)
            cache_ops.compute_rearranged(self._caches)


def _drafter_of(model: nn.Module, vocab: int) -> Drafter | None:
    match model:
        case Pair():
            return ModelDrafter(model, vocab)
        case Headed():
            return HeadsDrafter(model)
    return None


def _join_layers(
    layers: Caches, incoming: list[Caches], *, own_solo: bool, solo: bool
) -> Iterator[Cache]:
    for number in range(len(layers)):
        layers[number] = _joined(layers, incoming, number, own_solo=own_solo, solo=solo)
        yield layers[number]


def _joined(
    layers: Caches, incoming: list[Caches], number: int, *, own_solo: bool, solo: bool
) -> Cache:
    """Return one layer's merged cache. The old caches leave their lists, so that their memory is
    freed once copied."""
    layer, layers[number] = layers[number], None
    same_layer = [caches[number] for caches in incoming]
    for caches in incoming:
        caches[number] = None
    joining = same_layer[0].merge(same_layer) if solo else same_layer[0]
    if layer is None:
        return joining
    layer = layer.merge([layer]) if own_solo else layer
    layer.extend(joining)
    return layer


def _rejects(feed: Feed, right: int) -> bool:
    return right < len(feed.draft)
