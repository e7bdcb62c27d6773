"""The interface of a live batch's drafter. The caller brings the drafter's part of the rows'
caches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from omlx_server.compute.caches import Caches
from omlx_server.compute.sampler import SamplingRow


@dataclass(frozen=True, slots=True)
class Drafted:
    """The tokens drafted for each row, by `forwards` in `seconds`."""

    tokens: list[tuple[int, ...]]
    forwards: int
    seconds: float


class Drafter(Protocol):
    """Drafts for the rows of one live batch."""

    def clear(self) -> None:
        """Forget all rows."""

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""

    def add(self, rows: int) -> None:
        """Append `rows` rows; the drafter is up to date for each. All earlier steps must be
        read."""

    def is_behind(self, row: int) -> bool:
        """Return whether a row has tokens that the drafter has not taken in."""

    def catch_up(self, caches: Caches) -> None:
        """Take in the tokens that rows are behind. Does not wait."""

    def stepped(self, tokens: mx.array, hidden: mx.array | None, caches: Caches) -> None:
        """Note a plain step that fed the rows `tokens` int32 [B]. `hidden` [B, 1, D] are the
        model's last hidden states after it, if the drafter needs them. Does not wait."""

    def draft(
        self, newest: mx.array, rows: Sequence[SamplingRow], counts: Sequence[int], caches: Caches
    ) -> Drafted:
        """Draft at most counts[i] tokens of row i after newest[i], drawn as the row would sample
        them, but of its grammar only the first. Stops before a token that ends the answer. Waits.
        The caches then have the newest tokens and no drafts."""

    def verified(
        self, tokens: mx.array, hidden: mx.array | None, right: Sequence[int], caches: Caches
    ) -> None:
        """Note a step that fed the rows `tokens` int32 [B, T], of which the first and right[i] more
        stay of row i. `hidden` is [B, T, D]. All earlier steps must be read. Does not wait."""


def states_of(rows: Sequence[SamplingRow]) -> list[SamplingRow]:
    """Return independent copies of the rows' sampling states for drafts."""
    return [replace(row, sampling=replace(row.sampling, top_logprobs=None)) for row in rows]


def until_end(
    rows: Sequence[SamplingRow], tokens: Sequence[Sequence[int]], counts: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return each row's first counts[i] tokens, up to the first that ends the answer."""
    found = []
    for row, own, count in zip(rows, tokens, counts, strict=True):
        ends = (at for at, token in enumerate(own[:count]) if token in row.sampling.stop_ids)
        found.append(tuple(own[: next(ends, count)]))
    return found
