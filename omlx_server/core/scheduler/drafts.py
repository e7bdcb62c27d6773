"""What each row drafts for the next step: tokens that its grammar forces, then what followed the
same words before. Pure; owned by the scheduler.
"""

from collections.abc import Callable, Sequence

from omlx_server.core.blocks.cache_layout import CacheLayout
from omlx_server.core.request import SampledRow
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.scheduler.sequence import Sequence as Row
from omlx_server.core.speculation.counts import Method
from omlx_server.core.speculation.depth import DEPTHS, Offer
from omlx_server.core.speculation.ngram import NgramLookup
from omlx_server.core.speculation.speculation import Speculation
from omlx_server.core.speculation.verifies import Verifies
from omlx_server.core.step import SequenceId

# A grammar forces bytes; now and then the model would spell them by other tokens.
_FORCED = 0.97
# A row may have decoded long without a look-up. So many tokens are not followed one by one.
_MOST_AT_ONCE = 32


class Drafts:
    """Plans the drafts of all rows of a batch together, because the longest makes them all wait."""

    def __init__(self, speculation: Speculation, layout: CacheLayout) -> None:
        self._speculation = speculation
        self._layout = layout

    def plan(
        self, rows: Sequence[Row], limits: Limits, fits: Callable[[int], bool]
    ) -> dict[SequenceId, tuple[int, ...]]:
        """The drafts of the next step. `fits` says whether the memory is enough for rows that are
        fed so many tokens more than one. Nothing while tokens of rows are in flight."""
        most = _most(rows, limits)
        if not most or any(row.in_flight for row in rows):
            return {}
        drafts = [self._draft(row, most) for row in rows]
        offers = [Offer(_chances(row, draft)) for row, draft in zip(rows, drafts, strict=True)]
        depth = self._speculation.depth(offers, most)
        while depth and not fits(depth):
            depth = max((less for less in DEPTHS if less < depth), default=0)
        pairs = zip(rows, drafts, strict=True)
        return {row.id: draft[:depth] for row, draft in pairs if draft} if depth else {}

    def will_follow(self, rows: Sequence[Row], limits: Limits, fits: Callable[[int], bool]) -> bool:
        """Whether there will probably be drafts once the tokens in flight are known, so that it is
        worth it to read these before the next step is planned. `fits` as in `plan`."""
        most = _most(rows, limits)
        if not most or not all(row.in_flight for row in rows):
            return False
        chances = [_chances(row, self._draft(row, most + 1)) for row in rows]
        depth = self._speculation.depth([Offer(_behind_first(own)) for own in chances], most)
        return depth > 0 and fits(1)

    def verified(self, row: Row, result: SampledRow) -> None:
        """Count a row's draft by method. To be called before the row's new tokens are noted."""
        forced = min(result.drafted, len(row.forced))
        right = min(result.accepted, forced)
        counts = self._speculation.counts
        counts.note(Method.GRAMMAR, forced, right)
        counts.note(Method.NGRAM, result.drafted - forced, result.accepted - right)

    def _draft(self, row: Row, most: int) -> tuple[int, ...]:
        """At most `most` tokens: not beyond the end of the block, where the row is cut, so many
        that one token may still be sampled, and no end of the answer."""
        sampling = row.request.sampling
        room = sampling.max_tokens - len(row.output) - row.in_flight - 1
        if self._layout.keeps:
            size = self._layout.block_size
            room = min(room, size - 1 - row.fed % size)
        count = min(most, room)
        if count <= 0 or not row.request.speculates:
            return ()
        tokens, expected = row.forced[:count], _looked_up(row).draft(count)
        if expected[: len(tokens)] == tokens:
            tokens = expected
        ends = (at for at, token in enumerate(tokens) if token in sampling.stop_ids)
        return tokens[: next(ends, len(tokens))]


def _most(rows: Sequence[Row], limits: Limits) -> int:
    """How many tokens each of these rows may draft at most."""
    needed = Verifies.ALONE if len(rows) == 1 else Verifies.TOGETHER
    if not rows or needed not in limits.verify:
        return 0
    return min(DEPTHS[-1], limits.most_places // len(rows) - 1)


def _looked_up(row: Row) -> NgramLookup:
    """The row's look-up, which knows all of its tokens that were read."""
    prompt = row.request.tokens
    if row.lookup is None:
        row.lookup = NgramLookup(row.context)
    new = row.output[len(row.lookup) - len(prompt) :]
    if len(new) > _MOST_AT_ONCE:
        row.lookup.skip(new)
    elif new:
        row.chance.saw(*row.lookup.take(new))
    return row.lookup


def _behind_first(chances: tuple[float, ...]) -> tuple[float, ...]:
    """The chances of the tokens behind the first, which has to be right, too."""
    return (chances[0] * chances[1], *chances[2:]) if len(chances) > 1 else ()


def _chances(row: Row, draft: tuple[int, ...]) -> tuple[float, ...]:
    forced = len(row.forced)
    value = row.chance.value
    return tuple(_FORCED if at < forced else value for at in range(len(draft)))
