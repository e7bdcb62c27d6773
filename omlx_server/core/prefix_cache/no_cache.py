"""The prefix cache of a server without one."""

from omlx_server.core.blocks.layout import CacheLayout
from omlx_server.core.blocks.lookup import Ticket
from omlx_server.core.prefix_cache.cuts import NoCutter
from omlx_server.core.prefix_cache.eviction import Budget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache


class NoCache(PrefixCache):
    """For a model whose caches can't be cut: nothing is kept, and nobody waits for a block."""

    keeps = False

    def __init__(self, budget: Budget) -> None:
        super().__init__(CacheLayout(frozenset(), block_size=64), "none", budget)
        self.cutter = NoCutter(self.layout)

    def _claim(self, ticket: Ticket, cached: int) -> None:
        return
