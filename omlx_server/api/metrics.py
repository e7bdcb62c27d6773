"""GET /metrics: Prometheus text; by default with vLLM's names where it has them, so that its boards
work.

One registry per app. What the engines keep is read when somebody asks (api/engine_metrics.py); what
only HTTP knows (times as a client sees them) is observed as requests go by.
"""

import time

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.responses import Response

from omlx_server.api.description.operation import Bytes, described
from omlx_server.api.engine_metrics import EngineMetrics
from omlx_server.api.exchange import current
from omlx_server.api.families import VLLM
from omlx_server.api.phases import Phases
from omlx_server.api.served import ServedModels
from omlx_server.core.request import Restored

router = APIRouter()

_TEXT = Bytes(("text/plain",), "Prometheus' text format.")

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_FAST = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """Counters and histograms of one app. `shared` is what the names begin with that vLLM has."""

    def __init__(self, models: ServedModels, shared: str = VLLM) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineMetrics(models, shared))
        self._shared = shared
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of all requests")
        self.generated = self._counter("generation_tokens", "Tokens generated")
        self.finished = Counter(
            f"{shared}request_success",
            "Finished choices",
            ["finished_reason"],
            registry=self.registry,
        )
        self.ttft = self._histogram("time_to_first_token_seconds", _SECONDS)
        self.gaps = self._histogram("inter_token_latency_seconds", _FAST)
        self.total = self._histogram("e2e_request_latency_seconds", _SECONDS)
        self.queued = self._histogram("request_queue_time_seconds", _SECONDS)

    def follow(self, prompt_tokens: int) -> "Followed":
        """Watch one request from its submission on."""
        self.prompt_tokens.inc(prompt_tokens)
        phases = Phases(prompt_tokens)
        exchange = current()
        if exchange is not None:
            exchange.phases.append(phases)
        return Followed(self, phases)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(self._shared + name, text, registry=self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(self._shared + name, name, buckets=buckets, registry=self.registry)


class Followed:
    """The times of one request."""

    def __init__(self, metrics: Metrics, phases: Phases) -> None:
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
        self._metrics.finished.labels(reason).inc()
        self._metrics.total.observe(time.monotonic() - self._start)


@router.get("/metrics", openapi_extra=described("Server", _TEXT))
async def metrics(request: Request) -> Response:
    """All metrics as Prometheus text."""
    text = generate_latest(request.app.state.context.metrics.registry)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
