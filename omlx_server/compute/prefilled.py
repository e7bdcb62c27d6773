"""Rows on their way from a prefill to the live batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.core.step import Join


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled:
    """Rows whose context is computed but for its last token. With `solo`, the caches are those of
    one sequence, which all rows begin with; else they are in batch form, with a row for each join.
    The batch that the rows join takes the caches out of the list."""

    joins: tuple[Join, ...]
    caches: Caches
    solo: bool

    @property
    def begins(self) -> bool:
        """Whether the context is one token, so that the caches are still empty."""
        return len(self.joins[0].context) == 1

    def only(self, rows: Sequence[int]) -> "Prefilled":
        """Keep only these rows. Modifies the caches, which must be in batch form."""
        cache_ops.keep_rows(self.caches, rows)
        return Prefilled(tuple(self.joins[row] for row in rows), self.caches, self.solo)
