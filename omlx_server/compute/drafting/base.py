"""What a drafter of a live batch does. The batch tells it which rows come and go and what they are
fed; the drafter keeps its part of their caches, which the caller brings, in step with that."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from omlx_server.compute.caches import Caches
from omlx_server.compute.sampler import SamplingRow


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a drafter gave: tokens by row, by so many `forwards` in so many seconds."""

    tokens: list[tuple[int, ...]]
    forwards: int
    seconds: float


class Drafter(Protocol):
    """Drafts for the rows of one live batch."""

    def clear(self) -> None:
        """Forget all rows."""

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows stay, in this order."""

    def add(self, rows: int) -> None:
        """So many rows have joined after the others, which is none behind. All earlier steps must
        be read."""

    def is_behind(self, row: int) -> bool:
        """Whether a row has tokens that the drafter has not taken in."""

    def catch_up(self, caches: Caches) -> None:
        """Take in what rows are behind. Launches the work and does not wait for it."""

    def stepped(self, tokens: mx.array, hidden: mx.array | None, caches: Caches) -> None:
        """Note a plain step that feeds the rows `tokens` int32 [B], after which the model's last
        hidden states are `hidden` [B, 1, D], if the drafter needs any. Does not wait."""

    def draft(
        self, newest: mx.array, rows: Sequence[SamplingRow], counts: Sequence[int], caches: Caches
    ) -> Drafted:
        """Draft at most counts[i] tokens of row i, whose newest token is newest[i], and none from
        the first on that ends the answer. They are drawn as the row would sample them: by the same
        noise, penalties and bans, but of its grammar only the first. Waits for them. The caches
        then have the newest tokens, and nothing of the drafts."""

    def verified(
        self, tokens: mx.array, hidden: mx.array | None, right: Sequence[int], caches: Caches
    ) -> None:
        """Note that a step has fed the rows `tokens` int32 [B, T], of which the first, and right[i]
        after it, stay of row i, whoever drafted them. `hidden` [B, T, D] as in `stepped`. All
        earlier steps must be read. Does not wait."""


def states_of(rows: Sequence[SamplingRow]) -> list[SamplingRow]:
    """The rows' sampling states for drafts: they may go on without the rows."""
    return [replace(row, sampling=replace(row.sampling, top_logprobs=None)) for row in rows]


def until_end(
    rows: Sequence[SamplingRow], tokens: Sequence[Sequence[int]], counts: Sequence[int]
) -> list[tuple[int, ...]]:
    """Of each row the first counts[i] tokens, but none from the first on that ends the answer."""
    found = []
    for row, own, count in zip(rows, tokens, counts, strict=True):
        ends = (at for at, token in enumerate(own[:count]) if token in row.sampling.stop_ids)
        found.append(tuple(own[: next(ends, count)]))
    return found
