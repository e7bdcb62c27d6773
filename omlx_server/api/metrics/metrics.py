"""GET /metrics: Prometheus text, by default with vLLM's names where it has the metric."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from omlx_server import clock
from omlx_server.api.description.operation import Bytes, Operation
from omlx_server.api.http.exchange import Phases, current_exchange
from omlx_server.api.metric_helpers import MODEL, OWN, VLLM, counters, label_of
from omlx_server.api.metrics.engine import EngineMetrics
from omlx_server.api.metrics.traffic import Traffic
from omlx_server.api.models.served import ServedModels
from omlx_server.api.response_store.store import MemoryStore, ResponseStore
from omlx_server.core.request import Admitted, Restored

router = APIRouter()

_PROMETHEUS_TEXT = Bytes(("text/plain",), "Prometheus' text format.")

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_GAP_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class TokenFlow:
    """Counts one model's tokens, and by bucket the times between two tokens of a choice. The
    library's counters would take a tenth of each token's time."""

    def __init__(self) -> None:
        self.tokens = 0
        self.gap_counts = [0] * (len(_GAP_BUCKETS) + 1)
        self.gap_seconds = 0.0

    def add(self, tokens: int, gap_seconds: float | None) -> None:
        """Count tokens that came `gap_seconds` after their choice's last, None for its first."""
        self.tokens += tokens
        self.gap_counts[0] += tokens - 1  # no time lies between tokens that come together
        if gap_seconds is not None:
            self.gap_counts[bisect_left(_GAP_BUCKETS, gap_seconds)] += 1
            self.gap_seconds += gap_seconds


class TokenFlows(Collector):
    def __init__(self, vllm_prefix: str) -> None:
        self._vllm_prefix = vllm_prefix
        self._by_label: dict[str, TokenFlow] = {}

    def of(self, label: str) -> TokenFlow:
        return self._by_label.setdefault(label, TokenFlow())

    def collect(self) -> Iterator[Metric]:
        tokens = {(label,): flow.tokens for label, flow in self._by_label.items()}
        name = self._vllm_prefix + "generation_tokens"
        yield counters(name, "Tokens that were written.", (MODEL,), tokens)
        gaps = HistogramMetricFamily(
            self._vllm_prefix + "inter_token_latency_seconds",
            "Seconds between two tokens of a choice.",
            labels=(MODEL,),
        )
        names = [*map(str, _GAP_BUCKETS), "+Inf"]
        for label, flow in self._by_label.items():
            buckets = list(zip(names, accumulate(flow.gap_counts), strict=True))
            gaps.add_metric([label], buckets, flow.gap_seconds)
        yield gaps


class AppMetrics:
    """The counters and histograms of one app. `prefix` is the prefix of vLLM's metrics."""

    def __init__(
        self,
        models: ServedModels,
        prefix: str = VLLM,
        responses: ResponseStore | None = None,
        traffic: Traffic | None = None,
        others: Iterable[Collector] = (),
    ) -> None:
        self.registry = CollectorRegistry()
        self._vllm_prefix = prefix
        traffic = traffic or Traffic()
        self._engines = EngineMetrics(models, prefix, responses or MemoryStore(0, 0), traffic)
        self.flows = TokenFlows(prefix)
        for collector in (self._engines, *others, traffic, self.flows):
            self.registry.register(collector)
        self._by_model: dict[str, ModelMetrics] = {}
        self.prompt_tokens = self._counter(
            prefix + "prompt_tokens", "Tokens of all prompts, those that the cache had as well."
        )
        self.finished = self._counter(
            prefix + "request_success",
            "Choices that have ended, by the reason.",
            ("finished_reason", MODEL),
        )
        self.too_complex_grammars = self._counter(
            OWN + "grammars_too_complex",
            "Requests that ended because their grammar took too much time or memory at a token.",
        )
        self.ttft_seconds = self._histogram(
            "time_to_first_token_seconds",
            "Seconds from a request's arrival in the queue to the first token of its answer.",
        )
        self.latency_seconds = self._histogram(
            "e2e_request_latency_seconds",
            "Seconds from a request's arrival in the queue to the end of each of its choices.",
        )
        self.queue_seconds = self._histogram(
            "request_queue_time_seconds", "Seconds that a request has spent in the queue."
        )
        self._requests, self._damaged = self._make_app_counters()

    def count_request(self, method: str, route: str, status: int) -> None:
        """Count an ended HTTP request; `status` 0 is no response."""
        label = method if method in _METHODS else "other"
        self._requests.labels(label, route, str(status or "none")).inc()

    def response_damaged(self, reason: str) -> None:
        self._damaged.labels(reason).inc()

    def of(self, model: str) -> "ModelMetrics":
        if model not in self._by_model:
            self._by_model[model] = ModelMetrics(self, label_of(model))
        return self._by_model[model]

    def snapshot(self) -> "MetricsSnapshot":
        """Return all metrics as they are now. Counters of a loaded model begin at zero, or
        Prometheus would not see their first increase."""
        for name in self._engines.names:
            self.of(name)
        return MetricsSnapshot(list(self.registry.collect()))

    def _make_app_counters(self) -> tuple[Counter, Counter]:
        requests = self._counter(
            OWN + "http_requests",
            "HTTP requests that have ended, by method, route and status; `unknown` is no route.",
            ("method", "route", "status"),
        )
        damaged = self._counter(
            OWN + "responses_damaged",
            "Stored responses that could not be used, by the reason.",
            ("reason",),
        )
        return requests, damaged

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = (MODEL,)) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            self._vllm_prefix + name, text, (MODEL,), buckets=_BUCKETS, registry=self.registry
        )


class MetricsSnapshot(Collector):
    """Values of all metrics at one moment, for any thread."""

    def __init__(self, values: list[Metric]) -> None:
        self._values = values

    def collect(self) -> list[Metric]:
        return self._values

    def text(self) -> bytes:
        return generate_latest(self)


class ModelMetrics:
    def __init__(self, metrics: AppMetrics, label: str) -> None:
        self.label = label
        self.prompt_tokens = metrics.prompt_tokens.labels(label)
        self.flow = metrics.flows.of(label)
        self.finished = metrics.finished
        self.too_complex_grammars = metrics.too_complex_grammars.labels(label)
        self.ttft_seconds = metrics.ttft_seconds.labels(label)
        self.latency_seconds = metrics.latency_seconds.labels(label)
        self.queue_seconds = metrics.queue_seconds.labels(label)

    def follow(self, prompt_tokens: int) -> "RequestTimes":
        self.prompt_tokens.inc(prompt_tokens)
        phases = Phases(prompt_tokens)
        current_exchange().phases.append(phases)
        return RequestTimes(self, phases)


class RequestTimes:
    """Observes the times of one request, for the metrics and for its exchange."""

    def __init__(self, metrics: ModelMetrics, phases: Phases) -> None:
        self._metrics = metrics
        self._phases = phases
        self._last_token_times: dict[int, float] = {}

    def admitted(self, moment: float, admission: Admitted, restored: Restored | None) -> None:
        """Note the admission at `moment` (clock.now() seconds); the first ends the queue."""
        if self._phases.admitted is None:
            self._phases.admitted = moment
            self._metrics.queue_seconds.observe(max(0.0, moment - self._phases.queued))
        self._phases.cached_tokens, self._phases.miss = admission.cached, admission.miss
        if restored is not None:
            self._phases.restored = restored.begun, restored.ended

    def tokens(self, choice: int, count: int) -> None:
        now = clock.now()
        self._phases.generated += count
        self._phases.last = now
        last = self._last_token_times.get(choice)
        self._last_token_times[choice] = now
        self._metrics.flow.add(count, None if last is None else now - last)
        if last is not None:
            return
        self._phases.begun += 1
        if len(self._last_token_times) == 1:
            self._phases.first = now
            self._metrics.ttft_seconds.observe(now - self._phases.queued)

    def finished(self, reason: str) -> None:
        self._phases.finished.append(reason)
        self._metrics.finished.labels(reason, self._metrics.label).inc()
        self._metrics.latency_seconds.observe(clock.now() - self._phases.queued)

    def too_complex(self) -> None:
        self._metrics.too_complex_grammars.inc()


@router.get("/metrics", openapi_extra=Operation("Server", _PROMETHEUS_TEXT).extra)
async def metrics(request: Request) -> Response:
    """All metrics as Prometheus text."""
    text = await asyncio.to_thread(request.app.state.context.metrics.snapshot().text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
