"""Prompts served by a cache of any layout."""

import pytest

from omlx_server.core.blocks.block import Size
from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from tests.core.cache_walk import Tokens
from tests.core.places import place
from tests.core.simulator import HYBRID, KV, RECURRENT, WINDOWED

GRID = 8
TOKEN_BYTES = 10
STATE_BYTES = 15  # so that one fits where a block does not
LAYOUTS = {"kv": KV, "windowed": WINDOWED, "hybrid": HYBRID, "recurrent": RECURRENT}

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def start(cache: PrefixCache, prompt: Tokens, salt: bytes = b"") -> tuple[PrefixHandle, int]:
    """Compute a prompt, all but its last token; how many tokens of it were there."""
    handle = cache.enter(prompt[:-1], salt, ())
    at = cached = cache.admit(handle).cached
    while at < len(handle.tokens):
        stop = handle.next_stop(at, GRID)
        for cut in cache.cutter.of_chunk(handle, at, stop):
            at_cut = place(handle.root, prompt[: cut.stop], cache.layout.block_size)
            cache.store_block(at_cut, Size(TOKEN_BYTES * (cut.stop - cut.start), 1))
            if cut.worth is not None:
                cache.store_checkpoint(at_cut, Size(STATE_BYTES, 1), cut.worth)
        at = stop
    return handle, cached


def serve(cache: PrefixCache, prompt: Tokens, salt: bytes = b"") -> int:
    handle, cached = start(cache, prompt, salt)
    cache.leave(handle)
    cache.eviction.take_evicted()
    cache.index.check_invariants()
    return cached


def press_out(cache: PrefixCache) -> None:
    """All that can go has to."""
    budget, cache.budget = cache.budget, HotBudget(0, 0, buffers=0)
    serve(cache, (99, 98))
    cache.budget = budget
