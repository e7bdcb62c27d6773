"""Drafts of each row for the next step. Pure; owned by the scheduler."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from omlx_server.core.blocks.block import CacheLayout
from omlx_server.core.request import SampledRow
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.sequence import Sequence as Row
from omlx_server.core.speculation.depth import DEPTHS, Chance, Offer
from omlx_server.core.speculation.methods import NOTHING, DraftVerification, Method, methods_of
from omlx_server.core.speculation.ngram import NgramLookup
from omlx_server.core.speculation.speculation import DraftController, DrafterRecord
from omlx_server.core.step import SequenceId

# That a forced token is right: a grammar forces bytes, which the model may spell by other tokens.
_FORCED_CHANCE = 0.97
# More new tokens than this are appended at once, without checking predictions.
_MOST_CHECKED_TOKENS = 32
# Fast for all rows in each step.
_IN_FLIGHT, _TOKENS = attrgetter("in_flight"), attrgetter("tokens")


@dataclass(frozen=True, slots=True)
class Draft:
    """A row's possible draft: these `tokens`, or as many as it `asks` the drafter for."""

    offer: Offer = field(default_factory=Offer)
    tokens: tuple[int, ...] = ()
    asks: int = 0


_NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """The next step's drafts by row."""

    drafts: dict[SequenceId, tuple[int, ...]] = field(default_factory=dict)
    asks: dict[SequenceId, int] = field(default_factory=dict)  # tokens that the drafter adds
    depth: int = 0  # the longest

    @classmethod
    def of(cls, rows: Sequence[Row], drafts: Sequence[Draft], depth: int) -> "DraftPlan":
        pairs = [(row.id, draft) for row, draft in zip(rows, drafts, strict=True) if depth]
        return cls(
            {id: draft.tokens[:depth] for id, draft in pairs if draft.tokens},
            {id: min(draft.asks, depth) for id, draft in pairs if draft.asks},
            depth,
        )

    def feed(self, row: Row) -> None:
        asked = self.asks.get(row.id, 0)
        row.feed(asked or len(self.drafts.get(row.id, ())), by_drafter=asked > 0)


class Drafts:
    """Plans the drafts of a batch together, because all rows wait for the longest."""

    def __init__(self, speculation: DraftController | None, layout: CacheLayout) -> None:
        self._speculation = speculation
        self._layout = layout
        self.learns = speculation is not None and speculation.drafter is not None

    def plan(
        self, rows: Sequence[Row], limits: SchedulerLimits, fits: Callable[[int], bool]
    ) -> DraftPlan:
        """Return the next step's drafts. `fits`: memory allows this many tokens more per row."""
        most = _most_depth(rows, limits) if self._speculation is not None else 0
        if not most or any(map(_IN_FLIGHT, rows)):
            return DraftPlan()
        from_text = [self._text_draft(row, most, limits) for row in rows]
        from_drafter = self._drafter_drafts(rows, most, limits)
        depth, drafts = self._best_depth(from_text, from_drafter, most)
        while depth and not fits(depth):
            depth = max((less for less in DEPTHS if less < depth), default=0)
        return DraftPlan.of(rows, drafts, depth)

    def will_follow(
        self, rows: Sequence[Row], limits: SchedulerLimits, fits: Callable[[int], bool]
    ) -> bool:
        """Return whether drafts are likely after the tokens in flight."""
        most = _most_depth(rows, limits) if self._speculation is not None else 0
        if not most or not all(map(_IN_FLIGHT, rows)):
            return False
        from_text = [_without_first_token(self._text_draft(row, most + 1, limits)) for row in rows]
        from_drafter = self._drafter_drafts(rows, most, limits)
        depth, _ = self._best_depth(from_text, from_drafter, most)
        return depth > 0 and fits(1)

    def learn(self, row: Row, result: SampledRow) -> None:
        """Count a row's verified draft, before its new tokens are noted."""
        if self._speculation is None:
            return
        counts, drafter = self._speculation.counts, self._speculation.drafter
        if drafter is not None:
            _learn_drafter_chance(row, drafter, result)
        if drafter is not None and row.by_drafter:
            counts.note(drafter.method, result.drafted, result.accepted)
            return
        forced = min(result.drafted, len(row.forced))
        right = min(result.accepted, forced)
        counts.note(Method.GRAMMAR, forced, right)
        counts.note(Method.NGRAM, result.drafted - forced, result.accepted - right)

    def _best_depth(
        self, from_text: Sequence[Draft], from_drafter: Sequence[Draft], most: int
    ) -> tuple[int, Sequence[Draft]]:
        # Returns the best depth and its drafts, those of the drafter only if they are worth it.
        assert self._speculation is not None
        if not (from_drafter or any(map(_TOKENS, from_text))):
            return 0, from_text
        bet = self._speculation.bet([draft.offer for draft in from_text], most)
        if not from_drafter:
            return bet.depth, from_text
        pairs = zip(from_text, from_drafter, strict=True)
        mixed = [max(pair, key=lambda draft: draft.offer.gains()[-1]) for pair in pairs]
        mixed_bet = self._speculation.bet([draft.offer for draft in mixed], most, with_drafter=True)
        return (mixed_bet.depth, mixed) if mixed_bet.rate > bet.rate else (bet.depth, from_text)

    def _text_draft(self, row: Row, most: int, limits: SchedulerLimits) -> Draft:
        methods = _allowed_methods(row, limits)
        count = self._most_draft_tokens(row, most) if methods else 0
        if count <= 0:
            return _NO_DRAFT
        tokens = row.forced[:count] if Method.GRAMMAR in methods else ()
        if Method.NGRAM in methods:
            repeated = _updated_lookup(row).draft(count)
            if repeated[: len(tokens)] == tokens:  # it goes on from the forced ones
                tokens = repeated
        if not tokens:
            return _NO_DRAFT
        stops = row.request.sampling.stop_ids
        if not stops.isdisjoint(tokens):
            tokens = tokens[: next(at for at, token in enumerate(tokens) if token in stops)]
        forced = min(len(row.forced), len(tokens))
        chances = (_FORCED_CHANCE,) * forced + (row.chance.value,) * (len(tokens) - forced)
        return Draft(Offer(chances), tokens)

    def _drafter_drafts(
        self, rows: Sequence[Row], most: int, limits: SchedulerLimits
    ) -> list[Draft]:
        drafter = self._speculation.drafter if self._speculation is not None else None
        if drafter is None:
            return []
        return [self._drafter_draft(row, drafter, most, limits) for row in rows]

    def _drafter_draft(
        self, row: Row, drafter: DrafterRecord, most: int, limits: SchedulerLimits
    ) -> Draft:
        # No draft with images, or before its first token: recurrent layers have no state.
        if row.request.images or not row.fed or drafter.method not in _allowed_methods(row, limits):
            return _NO_DRAFT
        count = max(0, self._most_draft_tokens(row, most))
        return Draft(Offer((_drafter_chance(row, drafter).value,) * count), asks=count)

    def _most_draft_tokens(self, row: Row, most: int) -> int:
        count = row.request.sampling.max_tokens - len(row.output) - row.in_flight - 1
        if self._layout.keeps:  # a block must end with a token that is certain
            size = self._layout.block_size
            count = min(count, size - 1 - row.fed % size)
        return min(most, count)


def _most_depth(rows: Sequence[Row], limits: SchedulerLimits) -> int:
    needed = DraftVerification.ALONE if len(rows) == 1 else DraftVerification.TOGETHER
    if not rows or needed not in limits.verify or limits.speculation == "off":
        return 0
    return min(DEPTHS[-1], limits.most_places // len(rows) - 1)


def _allowed_methods(row: Row, limits: SchedulerLimits) -> frozenset[Method]:
    constraint = row.request.constraint
    refuses = constraint is not None and not constraint.takes_drafts
    if limits.speculation == "off" or refuses:
        return NOTHING
    return methods_of(row.request.speculation or limits.speculation)


def _updated_lookup(row: Row) -> NgramLookup:
    prompt = row.request.tokens
    if row.lookup is None:
        row.lookup = NgramLookup(row.context)
    new_tokens = row.output[len(row.lookup) - len(prompt) :]
    if len(new_tokens) > _MOST_CHECKED_TOKENS:
        row.lookup.skip(new_tokens)
    elif new_tokens:
        row.chance.learn(*row.lookup.take(new_tokens))
    return row.lookup


def _drafter_chance(row: Row, drafter: DrafterRecord) -> Chance:
    if row.drafter_chance is None:
        row.drafter_chance = drafter.new_chance()
    return row.drafter_chance


def _learn_drafter_chance(row: Row, drafter: DrafterRecord, result: SampledRow) -> None:
    row_chance = _drafter_chance(row, drafter)
    if not row.by_drafter:
        row_chance.forget()
        return
    drafted = result.drafted if row.request.constraint is None else row.drafted
    tried = min(drafted, result.accepted + 1)  # nothing is learned after the first wrong one
    for chance in (drafter.chance, row_chance):
        chance.learn(result.accepted, tried)


def _without_first_token(draft: Draft) -> Draft:
    if not draft.tokens:
        return draft
    chances = draft.offer.chances
    later = chances[1:]
    if later:  # they also need the first one to be right
        later = (chances[0] * later[0], *later[1:])
    return Draft(Offer(later), draft.tokens[1:])
