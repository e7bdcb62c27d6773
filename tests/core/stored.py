"""Fills a prefix cache and a cold tier with blocks of given sequences."""

from collections.abc import Sequence

from omlx_server.core.blocks.block import Size
from omlx_server.core.blocks.keys import chain
from omlx_server.core.blocks.record import Record
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from tests.core.places import place
from tests.core.simulator import KV, ROOMY

BLOCK = KV.block_size
BYTES = 40
COLD_BYTES = 25


def cache_with(*sequences: Sequence[int], cold: ColdIndex | None = None) -> PrefixCache:
    """Blocks of four tokens, the last one of each sequence shorter."""
    cache = PrefixCache(KV, "model", ROOMY, cold)
    for tokens in sequences:
        store(cache, tokens)
    return cache


def store(cache: PrefixCache, tokens: Sequence[int]) -> None:
    for stop in [*range(BLOCK, len(tokens), BLOCK), len(tokens)]:
        cache.store_block(place(cache.root(b""), tokens[:stop], BLOCK), Size(BYTES, 1))


def chill(cache: PrefixCache, tokens: Sequence[int]) -> None:
    """Store a sequence in the cold tier of a cache."""
    assert cache.cold is not None
    root = cache.root(b"")
    parents = [root, *chain(root, tokens, BLOCK)]
    for start in range(0, len(tokens), BLOCK):
        own = tuple(tokens[start : start + BLOCK])
        record = Record(cache.namespace, parents[start // BLOCK], start, own)
        cache.cold.add(record, COLD_BYTES)
