"""A decode that verifies drafts: a token is sampled after each fed token.

fed        newest   d0   d1   d2
sampled        s0   s1   s2   s3      d0 == s0, d1 != s1: the row gets s0 and s1,
                                      and keeps newest and d0 in its caches
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.hardware import device
from omlx_server.compute.sampler import Sampled, SamplingRow, sample, unsampled
from omlx_server.compute.sampling.logits import side_by_side
from omlx_server.core.request import SampledRow, SampledToken
from omlx_server.core.step import SequenceId


@dataclass(frozen=True, slots=True)
class Feed:
    """A row's draft for one decode, and its `states` before the len(draft) + 1 samples."""

    draft: tuple[int, ...]
    states: list[SamplingRow]

    @classmethod
    def of(cls, row: SamplingRow, draft: Sequence[int]) -> "Feed":
        states = row.states_along(draft)
        return cls(tuple(draft[: len(states) - 1]), states)


def make_feeds(
    rows: Sequence[SamplingRow], drafts: Mapping[SequenceId, Sequence[int]]
) -> list[Feed]:
    jobs = [partial(Feed.of, row, drafts.get(row.id, ())) for row in rows]
    if sum(row.is_constrained and row.id in drafts for row in rows) > 1:
        return side_by_side(jobs)
    return [make_feed() for make_feed in jobs]


def tokens_to_feed(newest: mx.array, feeds: Sequence[Feed]) -> mx.array:
    """Return tokens int32 [B, T]: each row's newest token and its draft, padded on the right."""
    drafts = cache_ops.padded([feed.draft for feed in feeds])
    return mx.concatenate([newest[:, None], drafts], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class VerifyingDecode:
    """A verifying decode in progress, of `tokens` [B, T]."""

    feeds: list[Feed]
    sampled: Sampled
    tokens: mx.array
    put_back: Sequence[Callable[[Sequence[int]], None]] = ()  # restores recurrent states
    hidden: mx.array | None = None  # what the drafter needs of it

    @property
    def width(self) -> int:
        return max([len(feed.states) for feed in self.feeds])

    def to_host(self) -> list[SampledRow]:
        """Wait for the tokens. Call it once."""
        sampled, row_start = self.sampled.tokens_on_host(), 0
        indices, tokens = list[int](), list[Sequence[SampledToken]]()
        for feed in self.feeds:
            row_tokens = sampled[row_start : row_start + len(feed.states)]
            accepted = _count_accepted(feed.draft, row_tokens)
            indices.append(row_start + accepted)
            tokens.append(row_tokens[: accepted + 1])
            row_start += len(feed.states)
        rows = self.sampled.sampled_rows(indices, tokens)
        pairs = zip(rows, self.feeds, strict=True)
        return [replace(row, drafted=len(feed.draft)) for row, feed in pairs]


def sample_after_each(logits: mx.array, feeds: Sequence[Feed], *, samples: bool) -> Sampled:
    """Launch samples after each fed token, from `logits` [B, T, V], if this rank `samples`."""
    states = [state for feed in feeds for state in feed.states]
    sampled = sample(_fed_logits(logits, feeds), states) if samples else unsampled(logits, states)
    device.launch(sampled.arrays())
    return sampled


def _fed_logits(logits: mx.array, feeds: Sequence[Feed]) -> mx.array:
    width = logits.shape[1]
    # The padding of shorter rows has no sample.
    indices = [row * width + at for row, feed in enumerate(feeds) for at in range(len(feed.states))]
    flat = logits.reshape(-1, logits.shape[-1])
    return flat[mx.array(indices)] if len(indices) < len(flat) else flat


def _count_accepted(draft: Sequence[int], sampled: Sequence[SampledToken]) -> int:
    pairs = enumerate(zip(draft, sampled, strict=False))
    return next((at for at, (drafted, token) in pairs if drafted != token.id), len(draft))
