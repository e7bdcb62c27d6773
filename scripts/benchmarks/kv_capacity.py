"""How many tokens a hot tier of a fixed size holds: a real instance is given prompt after prompt
until its cache has had to let blocks go."""

import random
from dataclasses import dataclass

from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.quantise import use_scheme
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.pipeline import Pipeline
from scripts.benchmarks.kv_bytes import BLOCK
from scripts.benchmarks.kv_variants import Variant

# Four blocks; the rest of a prompt would be a short block of its own.
_PROMPT_TOKENS = 4 * BLOCK
_LIMITS = SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=256, max_batched_tokens=2048)


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
    hot: dict[PayloadId, Payload] = {}
    instance = _instance(loaded, hot, hot_bytes)
    source, number = random.Random(0), 0
    while not instance.cache.stats.evicted_blocks:
        _answer(
            instance, f"prompt-{number}", source.choices(range(loaded.dims.vocab), k=_PROMPT_TOKENS)
        )
        number += 1
    instance.check_invariants()
    blocks = list(instance.cache.index.blocks())
    nbytes = sum(hot[block.id].nbytes for block in blocks)
    assert nbytes <= hot_bytes, "the hot tier holds more than it may"
    return Filled(sum(len(block.tokens) for block in blocks), nbytes)


def _instance(loaded: LoadedModel, hot: dict[PayloadId, Payload], hot_bytes: int) -> ModelInstance:
    codec = BlockCodec.of(loaded.model, BLOCK)
    assert codec is not None, "quantised caches have a codec"
    budget = HotBudget(hot_bytes, hot_bytes)
    return ModelInstance(
        ModelRunner(loaded, codec, hot.__getitem__),
        _LIMITS,
        lambda: PrefixCache(codec.layout, loaded.fingerprint, budget),
        hot,
    )


def _answer(instance: ModelInstance, name: str, tokens: list[int]) -> None:
    """One prompt, one token."""
    sampling = SamplingParams(max_tokens=1, temperature=0)
    instance.scheduler.add(Request(RequestId(name), tuple(tokens), sampling))
    pipeline = Pipeline(instance, lambda events: None)
    while instance.scheduler.has_work:
        step = instance.scheduler.schedule(now=0.0)
        if step is not None:
            pipeline.run(step, alone=False)
