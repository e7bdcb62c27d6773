"""What the engines say of themselves, as metrics: read when somebody asks for them."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from omlx_server.api.families import counter, counters, gauge, gauges, sums
from omlx_server.api.memory_metrics import memory_families
from omlx_server.api.served import ServedModels
from omlx_server.core.cache_report import CacheReport
from omlx_server.core.cold import ColdReport
from omlx_server.core.limits import Load


class EngineMetrics:
    """A collector over the engines' own snapshots; of several it gives sums. `shared` is what the
    names begin with that vLLM has."""

    def __init__(self, models: ServedModels, shared: str) -> None:
        self._models = models
        self._shared = shared

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        statuses = self._models.statuses()
        caches = [*(status.cache for status in statuses), self._models.vitals.gone]
        told = [status.cold for status in statuses] + [self._models.vitals.gone_cold]
        colds = [cold for cold in told if cold is not None][:1]  # one for all
        yield from _loads([status.load for status in statuses], self._shared)
        yield from _prefixes(caches, self._shared)
        yield from _kept(caches, colds)
        yield from _moved(caches, colds)
        yield from _traffic(colds)
        yield from memory_families(self._models.vitals.memory, self._shared)


def _loads(loads: Sequence[Load], shared: str) -> Iterator[Metric]:
    running = sum(load.running + load.prefilling for load in loads)
    yield gauge(f"{shared}num_requests_running", "Sequences at work", running)
    waiting = sum(load.waiting for load in loads)
    yield gauge(f"{shared}num_requests_waiting", "Sequences in the queue", waiting)


def _prefixes(caches: Sequence[CacheReport], shared: str) -> Iterator[Metric]:
    """What was looked up and found."""
    nbytes, budget = sum(c.nbytes for c in caches), _budget(caches)
    used = nbytes / budget if budget else 0
    yield gauge(f"{shared}kv_cache_usage_perc", "Share of the hot tier in use", used)
    queried, hit = sum(c.queried_tokens for c in caches), sum(c.hit_tokens for c in caches)
    yield counter(f"{shared}prefix_cache_queries", "Prompt tokens looked up", queried)
    yield counter(f"{shared}prefix_cache_hits", "Prompt tokens not computed again", hit)
    misses = sums(pair for c in caches for pair in c.misses if pair[0] != "none")
    yield counters("omlx_cache_misses", "Prompts by why", ("reason",), misses)


def _kept(caches: Sequence[CacheReport], colds: Sequence[ColdReport]) -> Iterator[Metric]:
    """What each tier holds and may hold. A file of the cold tier is a block or a checkpoint; which
    one only its header knows."""
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
    if colds:
        nbytes["cold", "files"] = sum(c.nbytes for c in colds)
        count["cold", "files"] = sum(c.blocks for c in colds)
        budget["cold",] = sum(c.budget for c in colds)
    yield gauges("omlx_cache_bytes", "Bytes kept", ("tier", "kind"), nbytes)
    yield gauges("omlx_cache_blocks", "Payloads kept", ("tier", "kind"), count)
    yield gauges("omlx_cache_budget_bytes", "Bytes allowed", ("tier",), budget)


def _moved(caches: Sequence[CacheReport], colds: Sequence[ColdReport]) -> Iterator[Metric]:
    """What each tier has dropped and given."""
    from_cold = sum(c.cold_hit_tokens for c in caches)
    hit = {("hot",): sum(c.hit_tokens for c in caches) - from_cold}
    evicted = {
        ("hot", "block_budget"): sum(c.evicted_blocks for c in caches),
        ("hot", "checkpoint_budget"): sum(c.evicted_checkpoints for c in caches),
    }
    if colds:
        hit["cold",] = from_cold
        evicted["cold", "budget_or_age"] = sum(c.evicted for c in colds)
    yield counters("omlx_cache_evictions", "Dropped", ("tier", "reason"), evicted)
    yield counters("omlx_cache_hit_tokens", "Tokens restored", ("tier",), hit)


def _traffic(colds: Sequence[ColdReport]) -> Iterator[Metric]:
    """What goes to the cold tier and comes from it; nothing when there is none."""
    if not colds:
        return
    written, read = sum(c.written_bytes for c in colds), sum(c.read_bytes for c in colds)
    yield counter("omlx_cache_written_bytes", "Bytes written to the cold tier", written)
    yield counter("omlx_cache_read_bytes", "Bytes read from the cold tier", read)
    blocks_written, blocks_read = sum(c.written for c in colds), sum(c.read for c in colds)
    yield counter("omlx_cache_written_blocks", "Blocks written to the cold tier", blocks_written)
    yield counter("omlx_cache_read_blocks", "Blocks read from the cold tier", blocks_read)
    queued = sum(c.queued for c in colds)
    yield gauge("omlx_cache_write_queue_bytes", "Bytes on their way to the cold tier", queued)
    dropped = sums(pair for c in colds for pair in c.dropped)
    yield counters("omlx_cache_dropped", "Blocks not written by why", ("reason",), dropped)
    failed = sums(pair for c in colds for pair in c.failed)
    yield counters("omlx_cache_read_failures", "Reads by why", ("reason",), failed)


def _budget(caches: Sequence[CacheReport]) -> int:
    """All models share one."""
    return max((c.budget for c in caches), default=0)
