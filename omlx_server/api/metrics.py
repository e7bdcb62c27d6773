"""GET /metrics: Prometheus text, with vLLM's names where it has them, so that its boards work.

One registry per app. Counters that the engine keeps are read when somebody asks; what only HTTP
knows (times as a client sees them) is observed as requests go by.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.responses import Response

from omlx_server.api.description.operation import Bytes, described
from omlx_server.api.served import ServedModels
from omlx_server.core.cache_report import CacheReport
from omlx_server.core.cold import ColdReport

router = APIRouter()

_TEXT = Bytes(("text/plain",), "Prometheus' text format.")

_Labels = TypeVar("_Labels", bound=tuple[str, ...])

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_FAST = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """Counters and histograms of one app."""

    def __init__(self, models: ServedModels) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Engines(models))
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of all requests")
        self.generated = self._counter("vllm:generation_tokens", "Tokens generated")
        self.finished = Counter(
            "vllm:request_success", "Finished choices", ["finished_reason"], registry=self.registry
        )
        self.ttft = self._histogram("vllm:time_to_first_token_seconds", _SECONDS)
        self.gaps = self._histogram("vllm:inter_token_latency_seconds", _FAST)
        self.total = self._histogram("vllm:e2e_request_latency_seconds", _SECONDS)
        self.queued = self._histogram("vllm:request_queue_time_seconds", _SECONDS)

    def follow(self, prompt_tokens: int) -> "Followed":
        """Watch one request from its submission on."""
        self.prompt_tokens.inc(prompt_tokens)
        return Followed(self)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, name.partition(":")[2], buckets=buckets, registry=self.registry)


class Followed:
    """The times of one request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start = time.monotonic()
        self._last: dict[int, float] = {}

    def admitted(self) -> None:
        """Its turn has come."""
        self._metrics.queued.observe(time.monotonic() - self._start)

    def token(self, choice: int) -> None:
        """A token has come."""
        now = time.monotonic()
        self._metrics.generated.inc()
        if not self._last:
            self._metrics.ttft.observe(now - self._start)
        if choice in self._last:
            self._metrics.gaps.observe(now - self._last[choice])
        self._last[choice] = now

    def finished(self, reason: str) -> None:
        """A choice has ended."""
        self._metrics.finished.labels(reason).inc()
        self._metrics.total.observe(time.monotonic() - self._start)


class _Engines:
    """Reads the engines' own snapshots."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        statuses = [engine.status for engine in self._models.engines()]
        loads = [status.load for status in statuses]
        caches = [status.cache for status in statuses]
        nbytes, budget = sum(c.nbytes for c in caches), sum(c.budget for c in caches)
        running = sum(load.running + load.prefilling for load in loads)
        yield _gauge("vllm:num_requests_running", "Sequences at work", running)
        waiting = sum(load.waiting for load in loads)
        yield _gauge("vllm:num_requests_waiting", "Sequences in the queue", waiting)
        used = nbytes / budget if budget else 0
        yield _gauge("vllm:kv_cache_usage_perc", "Share of the hot tier in use", used)
        queried, hit = sum(c.queried_tokens for c in caches), sum(c.hit_tokens for c in caches)
        yield _counter("vllm:prefix_cache_queries", "Prompt tokens looked up", queried)
        yield _counter("vllm:prefix_cache_hits", "Prompt tokens not computed again", hit)
        colds = [status.cold for status in statuses if status.cold is not None]
        yield from _tiers(caches, colds)
        yield from _traffic(colds)
        misses = _sums(pair for c in caches for pair in c.misses if pair[0] != "none")
        yield _labelled(
            CounterMetricFamily("omlx_cache_misses", "Prompts by why", labels=["reason"]), misses
        )


def _tiers(caches: Sequence[CacheReport], colds: Sequence[ColdReport]) -> Iterator[Metric]:
    """What each tier holds, may hold, has dropped and given. A file of the cold tier holds a block
    or a checkpoint; only its header knows which."""
    states = sum(c.checkpoint_bytes for c in caches)
    nbytes = {
        ("hot", "blocks"): sum(c.nbytes for c in caches) - states,
        ("hot", "checkpoints"): states,
    }
    count = {
        ("hot", "blocks"): sum(c.blocks for c in caches),
        ("hot", "checkpoints"): sum(c.checkpoints for c in caches),
    }
    budget = {("hot",): sum(c.budget for c in caches)}
    from_cold = sum(c.cold_hit_tokens for c in caches)
    hit = {("hot",): sum(c.hit_tokens for c in caches) - from_cold}
    evicted = {
        ("hot", "block_budget"): sum(c.evicted_blocks for c in caches),
        ("hot", "checkpoint_budget"): sum(c.evicted_checkpoints for c in caches),
    }
    if colds:
        nbytes["cold", "files"] = sum(c.nbytes for c in colds)
        count["cold", "files"] = sum(c.blocks for c in colds)
        budget["cold",] = sum(c.budget for c in colds)
        hit["cold",] = from_cold
        evicted["cold", "budget_or_age"] = sum(c.evicted for c in colds)
    yield _labelled(
        GaugeMetricFamily("omlx_cache_bytes", "Bytes kept", labels=["tier", "kind"]), nbytes
    )
    yield _labelled(
        GaugeMetricFamily("omlx_cache_blocks", "Payloads kept", labels=["tier", "kind"]), count
    )
    yield _labelled(
        GaugeMetricFamily("omlx_cache_budget_bytes", "Bytes allowed", labels=["tier"]), budget
    )
    yield _labelled(
        CounterMetricFamily("omlx_cache_evictions", "Dropped", labels=["tier", "reason"]), evicted
    )
    yield _labelled(
        CounterMetricFamily("omlx_cache_hit_tokens", "Tokens restored", labels=["tier"]), hit
    )


def _traffic(colds: Sequence[ColdReport]) -> Iterator[Metric]:
    """What goes to the cold tier and comes from it; nothing when there is none."""
    if not colds:
        return
    written, read = sum(c.written_bytes for c in colds), sum(c.read_bytes for c in colds)
    yield _counter("omlx_cache_written_bytes", "Bytes written to the cold tier", written)
    yield _counter("omlx_cache_read_bytes", "Bytes read from the cold tier", read)
    blocks_written, blocks_read = sum(c.written for c in colds), sum(c.read for c in colds)
    yield _counter("omlx_cache_written_blocks", "Blocks written to the cold tier", blocks_written)
    yield _counter("omlx_cache_read_blocks", "Blocks read from the cold tier", blocks_read)
    queued = sum(c.queued for c in colds)
    yield _gauge("omlx_cache_write_queue_bytes", "Bytes on their way to the cold tier", queued)
    yield _labelled(
        CounterMetricFamily("omlx_cache_dropped", "Blocks not written by why", labels=["reason"]),
        _sums(pair for c in colds for pair in c.dropped),
    )
    yield _labelled(
        CounterMetricFamily("omlx_cache_read_failures", "Reads by why", labels=["reason"]),
        _sums(pair for c in colds for pair in c.failed),
    )


@router.get("/metrics", openapi_extra=described("Server", _TEXT))
async def metrics(request: Request) -> Response:
    """All metrics as Prometheus text."""
    text = generate_latest(request.app.state.context.metrics.registry)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[tuple[str, ...], int]:
    """Counts of all engines by their label."""
    sums: dict[tuple[str, ...], int] = {}
    for label, count in pairs:
        sums[(label,)] = sums.get((label,), 0) + count
    return sums


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[_Labels, float]
) -> Metric:
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    return family
