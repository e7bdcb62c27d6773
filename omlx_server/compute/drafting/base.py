"""The interface of a live batch's drafter. The caller brings its part of the rows' caches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from omlx_server.compute.caches import Caches
from omlx_server.compute.sampler import SamplingRow


@dataclass(frozen=True, slots=True)
class Drafted:
    """The tokens drafted for each row, with so many `forwards` in so many `seconds`."""

    tokens: list[tuple[int, ...]]
    forwards: int
    seconds: float


class Drafter(Protocol):
    def clear(self) -> None: ...
    def keep(self, rows: Sequence[int]) -> None: ...
    def add(self, rows: int) -> None:
        """Append `rows` rows that are up to date."""

    def is_behind(self, row: int) -> bool:
        """Return whether the drafter's caches lack decoded tokens of a row."""

    def catch_up(self, caches: Caches) -> None:
        """Take in the lacking tokens. Does not wait."""

    def stepped(self, tokens: mx.array, hidden: mx.array | None, caches: Caches) -> None:
        """Note a plain step that fed `tokens` int32 [B] and gave `hidden` [B, 1, D]. Does not
        wait."""

    def draft(
        self, newest: mx.array, rows: Sequence[SamplingRow], counts: Sequence[int], caches: Caches
    ) -> Drafted:
        """Draft at most counts[i] tokens of row i after newest[i], up to the end of the answer.
        Waits. The caches then have the newest tokens and no drafts."""

    def verified(
        self, tokens: mx.array, hidden: mx.array | None, right: Sequence[int], caches: Caches
    ) -> None:
        """Note a step that fed `tokens` int32 [B, T]: the first and right[i] more stay of row i.
        Does not wait."""


def without_logprobs(rows: Sequence[SamplingRow]) -> list[SamplingRow]:
    """Return copies of the rows for drafting, which a draft may change."""
    return [replace(row, sampling=replace(row.sampling, top_logprobs=None)) for row in rows]


def until_end(
    rows: Sequence[SamplingRow], tokens: Sequence[Sequence[int]], counts: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return each row's first counts[i] tokens, up to the end of the answer."""
    drafts = []
    for row, draft, count in zip(rows, tokens, counts, strict=True):
        stops = (at for at, token in enumerate(draft[:count]) if token in row.sampling.stop_ids)
        drafts.append(tuple(draft[: next(stops, count)]))
    return drafts
