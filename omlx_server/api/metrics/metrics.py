"""GET /metrics: Prometheus text, by default with vLLM's names where it has the metric."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from omlx_server.api.description.operation import Bytes, Operation
from omlx_server.api.http.exchange import Phases, current_exchange
from omlx_server.api.metric_helpers import MODEL, OWN, VLLM, counters, label_of
from omlx_server.api.metrics.engine import EngineMetrics
from omlx_server.api.metrics.traffic import Traffic
from omlx_server.api.models.served import ServedModels
from omlx_server.api.response_store.store import MemoryStore, Store
from omlx_server.core.request import Admitted, Restored

router = APIRouter()

_TEXT = Bytes(("text/plain",), "Prometheus' text format.")

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_GAP_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class TokenFlow:
    """The tokens of one model, and the times between two of a choice by bucket. The library's
    counters would take a tenth of each token's time."""

    def __init__(self) -> None:
        self.tokens = 0
        self.gaps = [0] * (len(_GAP_SECONDS) + 1)
        self.seconds = 0.0

    def add(self, tokens: int, seconds: float | None) -> None:
        """Count tokens that came `seconds` after their choice's last, None for its first."""
        self.tokens += tokens
        self.gaps[0] += tokens - 1
        if seconds is not None:
            self.gaps[bisect_left(_GAP_SECONDS, seconds)] += 1
            self.seconds += seconds


class TokenFlows(Collector):
    def __init__(self, shared: str) -> None:
        self._shared = shared
        self._models: dict[str, TokenFlow] = {}

    def of(self, label: str) -> TokenFlow:
        return self._models.setdefault(label, TokenFlow())

    def collect(self) -> Iterator[Metric]:
        tokens = {(label,): flow.tokens for label, flow in self._models.items()}
        name = self._shared + "generation_tokens"
        yield counters(name, "Tokens that were written.", (MODEL,), tokens)
        gaps = HistogramMetricFamily(
            self._shared + "inter_token_latency_seconds",
            "Seconds between two tokens of a choice.",
            labels=(MODEL,),
        )
        names = [*map(str, _GAP_SECONDS), "+Inf"]
        for label, flow in self._models.items():
            buckets = list(zip(names, accumulate(flow.gaps), strict=True))
            gaps.add_metric([label], buckets, flow.seconds)
        yield gaps


class AppMetrics:
    """The counters and histograms of one app. `shared` is the prefix of vLLM's metrics."""

    def __init__(
        self,
        models: ServedModels,
        shared: str = VLLM,
        responses: Store | None = None,
        traffic: Traffic | None = None,
        others: Iterable[Collector] = (),
    ) -> None:
        self.registry = CollectorRegistry()
        self._shared = shared
        traffic = traffic or Traffic()
        self._engines = EngineMetrics(models, shared, responses or MemoryStore(0, 0), traffic)
        self.flows = TokenFlows(shared)
        for collector in (self._engines, *others, traffic, self.flows):
            self.registry.register(collector)
        self._models: dict[str, ModelMetrics] = {}
        self.prompt_tokens = self._counter(
            shared + "prompt_tokens", "Tokens of all prompts, those that the cache had as well."
        )
        self.finished = self._counter(
            shared + "request_success",
            "Choices that have ended, by the reason.",
            ("finished_reason", MODEL),
        )
        self.bombs = self._counter(
            OWN + "grammars_too_complex",
            "Requests that ended because their grammar took too much time or memory at a token.",
        )
        self.ttft = self._histogram(
            "time_to_first_token_seconds",
            "Seconds from a request's arrival in the queue to the first token of its answer.",
        )
        self.total = self._histogram(
            "e2e_request_latency_seconds",
            "Seconds from a request's arrival in the queue to the end of each of its choices.",
        )
        self.queued = self._histogram(
            "request_queue_time_seconds", "Seconds that a request has spent in the queue."
        )
        self._requests, self._damaged = self._of_the_app()

    def answered(self, method: str, route: str, status: int) -> None:
        """Count an ended HTTP request; `status` 0 is no response."""
        label = method if method in _METHODS else "other"
        self._requests.labels(label, route, str(status or "none")).inc()

    def response_damaged(self, reason: str) -> None:
        self._damaged.labels(reason).inc()

    def of(self, model: str) -> "ModelMetrics":
        if model not in self._models:
            self._models[model] = ModelMetrics(self, label_of(model))
        return self._models[model]

    def collected(self) -> "Collected":
        """Return all metrics as they are now. Counters of a loaded model begin at zero, or
        Prometheus would not see their first increase."""
        for name in self._engines.names:
            self.of(name)
        return Collected(list(self.registry.collect()))

    def _of_the_app(self) -> tuple[Counter, Counter]:
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
            self._shared + name, text, (MODEL,), buckets=_SECONDS, registry=self.registry
        )


class Collected(Collector):
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
        self.bombs = metrics.bombs.labels(label)
        self.ttft = metrics.ttft.labels(label)
        self.total = metrics.total.labels(label)
        self.queued = metrics.queued.labels(label)

    def follow(self, prompt_tokens: int) -> "Followed":
        self.prompt_tokens.inc(prompt_tokens)
        phases = Phases(prompt_tokens)
        current_exchange().phases.append(phases)
        return Followed(self, phases)


class Followed:
    """Observes the times of one request, for the metrics and for its exchange."""

    def __init__(self, metrics: ModelMetrics, phases: Phases) -> None:
        self._metrics = metrics
        self._phases = phases
        self._last: dict[int, float] = {}

    def admitted(self, moment: float, found: Admitted, restored: Restored | None) -> None:
        """Note the admission at `moment` (time.monotonic() seconds); the first counts for the queue
        time."""
        if self._phases.admitted is None:
            self._phases.admitted = moment
            self._metrics.queued.observe(max(0.0, moment - self._phases.queued))
        self._phases.cached_tokens, self._phases.miss = found.cached, found.miss
        if restored is not None:
            self._phases.restored = restored.begun, restored.ended

    def tokens(self, choice: int, count: int) -> None:
        now = time.monotonic()
        self._phases.generated += count
        self._phases.last = now
        last, self._last[choice] = self._last.get(choice), now
        self._metrics.flow.add(count, None if last is None else now - last)
        if last is not None:
            return
        self._phases.begun += 1
        if len(self._last) == 1:
            self._phases.first = now
            self._metrics.ttft.observe(now - self._phases.queued)

    def finished(self, reason: str) -> None:
        self._phases.finished.append(reason)
        self._metrics.finished.labels(reason, self._metrics.label).inc()
        self._metrics.total.observe(time.monotonic() - self._phases.queued)

    def too_complex(self) -> None:
        self._metrics.bombs.inc()


@router.get("/metrics", openapi_extra=Operation("Server", _TEXT).extra)
async def metrics(request: Request) -> Response:
    """All metrics as Prometheus text."""
    text = await asyncio.to_thread(request.app.state.context.metrics.collected().text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
