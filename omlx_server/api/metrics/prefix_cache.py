"""Metrics of the prefix cache and its two tiers."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from omlx_server.api.metric_helpers import MODEL, by_model, counters, gauges, sums
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.prefix_cache.report import CacheReport


def of_models(caches: Mapping[str, CacheReport], shared: str) -> Iterator[Metric]:
    budget = _budget(list(caches.values()))
    yield gauges(
        f"{shared}kv_cache_usage_perc",
        "Share of the hot tier that the model's blocks take, from 0 to 1, without those that "
        "sequences at work use. All models share that tier, so the sum over them is how full it "
        "is.",
        (MODEL,),
        by_model(
            {name: (c.nbytes - c.in_use) / budget if budget else 0 for name, c in caches.items()}
        ),
    )
    yield counters(
        f"{shared}prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache.",
        (MODEL,),
        by_model({name: cache.queried_tokens for name, cache in caches.items()}),
    )
    yield counters(
        f"{shared}prefix_cache_hits",
        "Prompt tokens that the prefix cache had, so that they were not computed again.",
        (MODEL,),
        by_model({name: cache.hit_tokens for name, cache in caches.items()}),
    )


def of_tiers(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    yield from _kept(caches, cold)
    yield from _moved(caches, cold)
    yield from _traffic(cold)


def _kept(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    """Yield what each tier holds and may hold. Only headers tell blocks from checkpoints in the
    cold tier."""
    states = sum(c.checkpoint_bytes for c in caches)
    nbytes = {
        ("hot", "blocks"): sum(c.nbytes for c in caches) - states,
        ("hot", "checkpoints"): states,
    }
    count = {
        ("hot", "blocks"): sum(c.blocks for c in caches),
        ("hot", "checkpoints"): sum(c.checkpoints for c in caches),
    }
    budget = {("hot",): _budget(caches)}
    if cold is not None:
        nbytes["cold", "files"] = cold.nbytes
        count["cold", "files"] = cold.blocks
        budget["cold",] = cold.budget
    kinds = ("tier", "kind")
    yield gauges("omlx_cache_bytes", "Bytes that a tier holds, by what they are.", kinds, nbytes)
    yield gauges("omlx_cache_blocks", "What a tier holds, in pieces, by kind.", kinds, count)
    yield gauges("omlx_cache_budget_bytes", "Bytes that a tier may hold.", ("tier",), budget)


def _moved(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    from_cold = sum(c.cold_hit_tokens for c in caches)
    hit = {("hot",): sum(c.hit_tokens for c in caches) - from_cold}
    evicted = {
        ("hot", "block_budget"): sum(c.evicted_blocks for c in caches),
        ("hot", "checkpoint_budget"): sum(c.evicted_checkpoints for c in caches),
    }
    if cold is not None:
        hit["cold",] = from_cold
        evicted["cold", "budget_or_age"] = cold.evicted
    misses = sums(pair for c in caches for pair in c.misses.items() if pair[0] != "none")
    yield counters(
        "omlx_cache_misses",
        "Prompts of which the cache did not have all that it might, by the reason.",
        ("reason",),
        misses,
    )
    yield counters(
        "omlx_cache_evictions",
        "Blocks and checkpoints that a tier has dropped, by what was short.",
        ("tier", "reason"),
        evicted,
    )
    yield counters(
        "omlx_cache_hit_tokens",
        "Prompt tokens that were not computed again, by the tier that had them.",
        ("tier",),
        hit,
    )


def _traffic(cold: ColdReport | None) -> Iterator[Metric]:
    if cold is None:
        return
    for name, text, value in (
        ("written_bytes", "Bytes that were written to the cold tier.", cold.written_bytes),
        ("read_bytes", "Bytes that were read from the cold tier.", cold.read_bytes),
        ("written_blocks", "Blocks that were written to the cold tier.", cold.written),
        ("read_blocks", "Blocks that were read from the cold tier.", cold.read),
    ):
        yield CounterMetricFamily(f"omlx_cache_{name}", text, value=value)
    waiting = "Bytes in memory that wait to be written to the cold tier."
    yield GaugeMetricFamily("omlx_cache_write_queue_bytes", waiting, value=cold.queued)
    for name, text, why in (
        ("dropped", "Blocks that were not written to the cold tier, by the reason.", cold.dropped),
        ("read_failures", "Reads of the cold tier that failed, by the reason.", cold.failed),
    ):
        yield counters(f"omlx_cache_{name}", text, ("reason",), sums(why.items()))


def _budget(caches: Sequence[CacheReport]) -> int:
    return max((c.budget for c in caches), default=0)
