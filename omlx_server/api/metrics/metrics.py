"""GET /metrics: Prometheus text; by default with vLLM's names where it has them, so that its boards
work.

One registry per app. What the engines keep is read when somebody asks (api/metrics/engine.py); what
only HTTP knows (times as a client sees them) is observed as requests go by, for each model apart.
"""

import time
from dataclasses import dataclass

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.responses import Response

from omlx_server.api.description.operation import Bytes, described
from omlx_server.api.families import MODEL, OWN, VLLM, label_of
from omlx_server.api.http.exchange import current
from omlx_server.api.http.phases import Phases
from omlx_server.api.metrics.engine import EngineMetrics
from omlx_server.api.models.served import ServedModels
from omlx_server.api.response_store.store import NoStore, Store
from omlx_server.core.request import Restored

router = APIRouter()

_TEXT = Bytes(("text/plain",), "Prometheus' text format.")

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_FAST = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """Counters and histograms of one app. `shared` is what the names begin with that vLLM has,
    `responses` where those are kept."""

    def __init__(
        self, models: ServedModels, shared: str = VLLM, responses: Store | None = None
    ) -> None:
        self.registry = CollectorRegistry()
        self._shared = shared
        self._engines = EngineMetrics(models, shared, responses or NoStore())
        self.registry.register(self._engines)
        self._models: dict[str, ModelMetrics] = {}
        self._prompt = self._counter(
            "prompt_tokens", "Tokens of all prompts, those that the cache had as well."
        )
        self._generated = self._counter("generation_tokens", "Tokens that were written.")
        self._finished = Counter(
            f"{shared}request_success",
            "Choices that have ended, by the reason.",
            ["finished_reason", MODEL],
            registry=self.registry,
        )
        self._bombs = Counter(
            OWN + "grammars_too_complex",
            "Requests that ended because their grammar took too much time or memory at a token.",
            [MODEL],
            registry=self.registry,
        )
        self._ttft = self._histogram(
            "time_to_first_token_seconds",
            "Seconds from a request's arrival in the queue to the first token of its answer.",
            _SECONDS,
        )
        self._gaps = self._histogram(
            "inter_token_latency_seconds", "Seconds between two tokens of a choice.", _FAST
        )
        self._total = self._histogram(
            "e2e_request_latency_seconds",
            "Seconds from a request's arrival in the queue to the end of each of its choices.",
            _SECONDS,
        )
        self._queued = self._histogram(
            "request_queue_time_seconds",
            "Seconds that a request has spent in the queue.",
            _SECONDS,
        )
        self._requests = Counter(
            "omlx_http_requests",
            "HTTP requests that have ended, by method, route and status; `unknown` is no route.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._damaged = Counter(
            "omlx_responses_damaged",
            "Stored responses that could not be used, by the reason.",
            ["reason"],
            registry=self.registry,
        )

    def answered(self, method: str, route: str, status: int) -> None:
        """A request has ended; `status` is 0 where its client has left before any answer."""
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status or "none")).inc()

    def response_damaged(self, reason: str) -> None:
        """A stored response could not be used."""
        self._damaged.labels(reason).inc()

    def of(self, model: str) -> "ModelMetrics":
        """Those of a model, by the first of its names."""
        if model not in self._models:
            label = label_of(model)
            self._models[model] = ModelMetrics(
                label,
                self._prompt.labels(label),
                self._generated.labels(label),
                self._finished,
                self._bombs.labels(label),
                self._ttft.labels(label),
                self._gaps.labels(label),
                self._total.labels(label),
                self._queued.labels(label),
            )
        return self._models[model]

    def text(self) -> bytes:
        """All of them. A model that was loaded counts from zero: what Prometheus sees for the first
        time has no increase."""
        for name in self._engines.names:
            self.of(name)
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(self._shared + name, text, [MODEL], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            self._shared + name, text, [MODEL], buckets=buckets, registry=self.registry
        )


@dataclass(frozen=True, slots=True, eq=False)
class ModelMetrics:
    """What is counted of one model; its label is in all but `finished`."""

    label: str
    prompt_tokens: Counter
    generated: Counter
    finished: Counter
    bombs: Counter
    ttft: Histogram
    gaps: Histogram
    total: Histogram
    queued: Histogram

    def follow(self, prompt_tokens: int) -> "Followed":
        """Watch one request from its submission on."""
        self.prompt_tokens.inc(prompt_tokens)
        phases = Phases(prompt_tokens)
        exchange = current()
        if exchange is not None:
            exchange.phases.append(phases)
        return Followed(self, phases)


class Followed:
    """The times of one request."""

    def __init__(self, metrics: ModelMetrics, phases: Phases) -> None:
        self._metrics = metrics
        self._phases = phases
        self._start = phases.queued
        self._last: dict[int, float] = {}

    def admitted(self, moment: float, cached_tokens: int) -> None:
        """Its turn came then. Only the first word of it counts."""
        if self._phases.admitted is None:
            self._phases.admitted = moment
            self._metrics.queued.observe(max(0.0, moment - self._start))
        self._phases.cached_tokens = cached_tokens

    def restored(self, restored: Restored | None) -> None:
        """What was known of the prompt was put together."""
        if restored is not None:
            self._phases.restored = restored.begun, restored.ended

    def token(self, choice: int) -> None:
        """A token has come."""
        now = time.monotonic()
        self._phases.token(now)
        self._metrics.generated.inc()
        if not self._last:
            self._metrics.ttft.observe(now - self._start)
        if choice in self._last:
            self._metrics.gaps.observe(now - self._last[choice])
        self._last[choice] = now

    def finished(self, reason: str) -> None:
        """A choice has ended."""
        self._phases.finished.append(reason)
        self._metrics.finished.labels(reason, self._metrics.label).inc()
        self._metrics.total.observe(time.monotonic() - self._start)

    def too_complex(self) -> None:
        """Its grammar took too much, which is its end."""
        self._metrics.bombs.inc()


@router.get("/metrics", openapi_extra=described("Server", _TEXT))
async def metrics(request: Request) -> Response:
    """All metrics as Prometheus text."""
    text = request.app.state.context.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
