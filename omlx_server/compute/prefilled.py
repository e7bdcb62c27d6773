"""Rows on their way from a prefill to the live batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.core.step import Join


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled:
    """Rows whose context is computed except for its last token. `solo` caches are of one sequence,
    with which all rows begin; else they are in batch form. The live batch empties the list of
    caches."""

    joins: tuple[Join, ...]
    caches: Caches
    solo: bool

    @property
    def begins(self) -> bool:
        """Whether the context is one token, so that the caches are empty."""
        return len(self.joins[0].context) == 1

    def only(self, rows: Sequence[int]) -> "Prefilled":
        """Keep only these rows. Modifies the caches, which must be in batch form."""
        cache_ops.keep_rows(self.caches, rows)
        return Prefilled(tuple(self.joins[row] for row in rows), self.caches, self.solo)
