"""Make OpenTelemetry spans of an exchange that has ended. Needs the extra "otel".

Below a request's span, each of its prompts has these, without any text:

    queue      until the scheduler admits it
    restore    until its cached prefix is restored, if it has one
    prefill    until the first token
    decode     until the last token
"""

import time
from collections.abc import Iterator, Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from omlx_server import __version__
from omlx_server.api.http.exchange import Exchange, Phases

Value = str | int | float | bool

_NAME = "omlx-server"
_PARENTS = TraceContextTextMapPropagator()
_EXPORT_SECONDS = 2
_IGNORED = ("/metrics", "/health", "/health/live", "/health/ready")


class OtelTracer:
    """Sends exchanges as spans. Any thread may call it."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(_NAME, __version__)

    def record(self, exchange: Exchange) -> None:
        if exchange.route in _IGNORED:
            return
        clock = time.time_ns() - int(time.monotonic() * 1e9)
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.route}",
            _PARENTS.extract({"traceparent": exchange.parent}, Context()),
            SpanKind.SERVER,
            {
                "http.request.method": exchange.method,
                "http.route": exchange.route,
                "http.response.status_code": exchange.status,
                "omlx.request_id": exchange.id,
            },
            start_time=clock + int(exchange.started * 1e9),
        )
        if exchange.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        below = set_span_in_context(span)
        for number, phases in enumerate(exchange.phases):
            self._phases(phases, number, exchange.ended, below, clock)
        span.end(clock + int(exchange.ended * 1e9))

    def shutdown(self) -> None:
        """Send the spans that are left; takes a few seconds at most."""
        self._provider.shutdown()

    def _phases(self, phases: Phases, number: int, end: float, below: Context, clock: int) -> None:
        for name, start, stop, attributes in _spans(phases, end):
            span = self._tracer.start_span(
                name,
                below,
                attributes={"omlx.prompt": number, **attributes},
                start_time=clock + int(start * 1e9),
            )
            span.end(clock + int(stop * 1e9))


def _spans(phases: Phases, end: float) -> Iterator[tuple[str, float, float, Mapping[str, Value]]]:
    """Yield name, start, stop (time.monotonic() seconds) and attributes of each span."""
    admitted = phases.admitted if phases.admitted is not None else phases.first
    if admitted is not None and phases.restored is not None:
        # The admission is reported a moment after the restoring has begun.
        admitted = min(admitted, phases.restored[0])
    yield "queue", phases.queued, _or(admitted, end), {}
    if admitted is None:
        return
    prefill_from = admitted
    tokens: dict[str, Value] = {
        "omlx.prompt_tokens": phases.prompt_tokens,
        "omlx.cached_tokens": phases.cached_tokens,
    }
    if phases.restored is not None:
        prefill_from = phases.restored[1]
        yield "restore", admitted, prefill_from, {"omlx.cached_tokens": phases.cached_tokens}
    yield "prefill", prefill_from, _or(phases.first, end), tokens
    if phases.first is None:
        return
    reasons = ",".join(sorted(set(phases.finished))) or "interrupted"
    made: dict[str, Value] = {
        "omlx.completion_tokens": phases.generated,
        "omlx.finish_reason": reasons,
    }
    yield "decode", phases.first, _or(phases.last, end), made


def _or(moment: float | None, end: float) -> float:
    return end if moment is None else moment


def make_tracer() -> OtelTracer:
    resource = Resource.create({"service.name": _NAME, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=_EXPORT_SECONDS)))
    return OtelTracer(provider)
