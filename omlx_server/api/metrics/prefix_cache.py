"""Metrics of the prefix cache and its two tiers."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from omlx_server.api.metric_helpers import counters, gauges, model_counters, model_gauges, sums
from omlx_server.core.cold.index import ColdReport
from omlx_server.core.prefix_cache.report import CacheReport


def metrics_of_models(caches: Mapping[str, CacheReport], vllm_prefix: str) -> Iterator[Metric]:
    budget = _hot_budget(list(caches.values()))
    usage = {
        name: (cache.nbytes - cache.in_use) / budget if budget else 0.0
        for name, cache in caches.items()
    }
    yield model_gauges(
        f"{vllm_prefix}kv_cache_usage_perc",
        "Share of the hot tier that the model's blocks take, from 0 to 1, without those that "
        "sequences at work use. All models share that tier, so the sum over them is how full it "
        "is.",
        usage,
    )
    yield model_counters(
        f"{vllm_prefix}prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache.",
        {name: cache.queried_tokens for name, cache in caches.items()},
    )
    yield model_counters(
        f"{vllm_prefix}prefix_cache_hits",
        "Prompt tokens that the prefix cache had, so that they were not computed again.",
        {name: cache.hit_tokens for name, cache in caches.items()},
    )


def metrics_of_tiers(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    yield from _held_metrics(caches, cold)
    yield from _lookup_metrics(caches, cold)
    yield from _cold_traffic_metrics(cold)


def _held_metrics(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    """Yield what each tier holds and may hold. Blocks and checkpoints of the cold tier are counted
    together, as only the headers of files tell them apart."""
    checkpoint_bytes = sum(cache.checkpoint_bytes for cache in caches)
    nbytes = {
        ("hot", "blocks"): sum(cache.nbytes for cache in caches) - checkpoint_bytes,
        ("hot", "checkpoints"): checkpoint_bytes,
    }
    count = {
        ("hot", "blocks"): sum(cache.blocks for cache in caches),
        ("hot", "checkpoints"): sum(cache.checkpoints for cache in caches),
    }
    budget = {("hot",): _hot_budget(caches)}
    if cold is not None:
        nbytes["cold", "files"] = cold.nbytes
        count["cold", "files"] = cold.blocks
        budget["cold",] = cold.budget
    kinds = ("tier", "kind")
    yield gauges("omlx_cache_bytes", "Bytes that a tier holds, by what they are.", kinds, nbytes)
    yield gauges("omlx_cache_blocks", "What a tier holds, in pieces, by kind.", kinds, count)
    yield gauges("omlx_cache_budget_bytes", "Bytes that a tier may hold.", ("tier",), budget)


def _lookup_metrics(caches: Sequence[CacheReport], cold: ColdReport | None) -> Iterator[Metric]:
    from_cold = sum(cache.cold_hit_tokens for cache in caches)
    hit = {("hot",): sum(cache.hit_tokens for cache in caches) - from_cold}
    evicted = {
        ("hot", "block_budget"): sum(cache.evicted_blocks for cache in caches),
        ("hot", "checkpoint_budget"): sum(cache.evicted_checkpoints for cache in caches),
    }
    if cold is not None:
        hit["cold",] = from_cold
        evicted["cold", "budget_or_age"] = cold.evicted
    misses = sums(pair for cache in caches for pair in cache.misses.items() if pair[0] != "none")
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


def _cold_traffic_metrics(cold: ColdReport | None) -> Iterator[Metric]:
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
    for name, text, counts_by_reason in (
        ("dropped", "Blocks that were not written to the cold tier, by the reason.", cold.dropped),
        ("read_failures", "Reads of the cold tier that failed, by the reason.", cold.failed),
    ):
        yield counters(f"omlx_cache_{name}", text, ("reason",), sums(counts_by_reason.items()))


def _hot_budget(caches: Sequence[CacheReport]) -> int:
    """Return the bytes of the hot tier, which all models share."""
    return max((cache.budget for cache in caches), default=0)
