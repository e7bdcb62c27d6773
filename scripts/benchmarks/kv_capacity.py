"""How many tokens a hot tier of a fixed size holds: a real lane is given prompt after prompt until
its cache has had to let blocks go."""

import random
from dataclasses import dataclass

from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.quantise import use_scheme
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.prefix_cache.eviction import Budget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import Limits
from omlx_server.engine.model_instance import Lane
from omlx_server.store.hot import HotTier
from scripts.benchmarks.kv_bytes import BLOCK
from scripts.benchmarks.kv_variants import Variant

# Four blocks; the rest of a prompt would be a short block of its own.
_PROMPT_TOKENS = 4 * BLOCK
_LIMITS = Limits(max_batch_size=8, prefill_chunk_tokens=256, max_batched_tokens=2048)


@dataclass(frozen=True, slots=True)
class Filled:
    """What a full hot tier holds."""

    tokens: int
    nbytes: int


def fill(loaded: LoadedModel, variant: Variant, hot_bytes: int) -> Filled:
    """Random prompts that share nothing, one after the other."""
    scheme = variant.make()
    if scheme is not None:
        use_scheme(loaded.model, scheme)
    hot: HotTier[Payload] = HotTier()
    lane = _lane(loaded, hot, hot_bytes)
    source, number = random.Random(0), 0
    while not lane.cache.stats.evicted_blocks:
        _answer(
            lane, f"prompt-{number}", source.choices(range(loaded.dims.vocab), k=_PROMPT_TOKENS)
        )
        number += 1
    lane.check_invariants()
    blocks = list(lane.cache.index.blocks())
    nbytes = sum(hot.get(block.id).nbytes for block in blocks)
    assert nbytes <= hot_bytes, "the hot tier holds more than it may"
    return Filled(sum(len(block.tokens) for block in blocks), nbytes)


def _lane(loaded: LoadedModel, hot: HotTier[Payload], hot_bytes: int) -> Lane:
    codec = BlockCodec.of(loaded.model, BLOCK)
    assert codec is not None, "quantised caches have a codec"
    budget = Budget(hot_bytes, hot_bytes)
    return Lane(
        ModelRunner(loaded, codec, hot.get),
        _LIMITS,
        lambda: PrefixCache(codec.layout, loaded.fingerprint, budget),
        hot,
    )


def _answer(lane: Lane, name: str, tokens: list[int]) -> None:
    """One prompt, one token."""
    sampling = SamplingParams(max_tokens=1, temperature=0)
    lane.scheduler.add(Request(RequestId(name), tuple(tokens), sampling), now=0.0)
    while lane.scheduler.has_work:
        step = lane.scheduler.schedule(now=0.0)
        if step is not None:
            lane.finish(lane.launch(step))
