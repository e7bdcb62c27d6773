"""How much memory the indexes of one machine take: measured on the real objects, with blocks of 64
tokens of one conversation, as `tracemalloc` counts it."""

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omlx_server.core.blocks.block import BlockPlace, Size
from omlx_server.core.blocks.cache_layout import CacheLayout, LayerKind
from omlx_server.core.blocks.keys import chain
from omlx_server.core.blocks.record import Record
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from scripts.scaling.assumptions import BLOCK_TOKENS

_BLOCKS = 2000
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class IndexBytes:
    """Bytes of memory for one block: in the index of the hot tier, in that of the cold tier."""

    hot: float
    cold: float


def measure() -> IndexBytes:
    """Fill both indexes, one after the other."""
    records = _records()
    return IndexBytes(_per_block(_fill_hot, records), _per_block(_fill_cold, records))


def _records() -> list[Record]:
    # Ids of tokens beyond 256, since Python has those below once for all.
    tokens = tuple(range(1000, 1000 + _BLOCKS * BLOCK_TOKENS))
    cache = _cache()
    keys = [cache.root(b""), *chain(cache.root(b""), tokens, BLOCK_TOKENS)]
    return [
        Record(cache.namespace, keys[i], at, tokens[at : at + BLOCK_TOKENS])
        for i, at in enumerate(range(0, len(tokens), BLOCK_TOKENS))
    ]


def _cache() -> PrefixCache:
    layout = CacheLayout(frozenset({LayerKind.DELTA}), BLOCK_TOKENS, refers=True)
    return PrefixCache(layout, "model", HotBudget(_BLOCKS * _BLOCK_BYTES, 0))


def _fill_hot(records: Sequence[Record]) -> object:
    cache = _cache()
    for record in records:
        own = _copy(record)
        place = BlockPlace(record.parent, record.start, own)
        assert cache.store_block(place, Size(_BLOCK_BYTES, 1)) is not None
    return cache


def _fill_cold(records: Sequence[Record]) -> object:
    index = ColdIndex(_BLOCKS * _BLOCK_BYTES)
    for record in records:
        copy = Record(record.namespace, record.parent, record.start, _copy(record))
        assert index.add(copy, _BLOCK_BYTES) == []
    return index


def _copy(record: Record) -> tuple[int, ...]:
    """The tokens of a record as new objects, since only the index has those of old prompts."""
    return tuple(range(record.tokens[0], record.tokens[-1] + 1))


def _per_block(fill: Callable[[Sequence[Record]], object], records: Sequence[Record]) -> float:
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    index = fill(records)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del index
    return (after - before) / len(records)
