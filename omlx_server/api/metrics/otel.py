"""Make OpenTelemetry spans of an exchange that has ended. Needs the extra "otel".

Below a request's span, each of its prompts has these, without any text:

    queue      until the scheduler admits it
    restore    until its cached prefix is restored, if it has one
    prefill    until the first token
    decode     until the last token
"""

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

_SERVICE_NAME = "omlx-server"
_TRACE_CONTEXT = TraceContextTextMapPropagator()
_EXPORT_SECONDS = 2
_IGNORED_ROUTES = ("/metrics", "/health", "/health/live", "/health/ready")


class OtelTracer:
    """Sends exchanges as spans. Any thread may call it."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(_SERVICE_NAME, __version__)

    def record(self, exchange: Exchange) -> None:
        if exchange.route in _IGNORED_ROUTES:
            return
        # Moments of an exchange are in clock.now() seconds, spans in nanoseconds since 1970.
        epoch_offset_ns = int((exchange.at - exchange.started) * 1e9)
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.route}",
            _TRACE_CONTEXT.extract({"traceparent": exchange.parent}, Context()),
            SpanKind.SERVER,
            {
                "http.request.method": exchange.method,
                "http.route": exchange.route,
                "http.response.status_code": exchange.status,
                "omlx.request_id": exchange.id,
            },
            start_time=epoch_offset_ns + int(exchange.started * 1e9),
        )
        if exchange.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        request_context = set_span_in_context(span)
        for number, phases in enumerate(exchange.phases):
            for name, start, end, attributes in _phase_spans(phases, exchange.ended):
                phase_span = self._tracer.start_span(
                    name,
                    request_context,
                    attributes={"omlx.prompt": number, **attributes},
                    start_time=epoch_offset_ns + int(start * 1e9),
                )
                phase_span.end(epoch_offset_ns + int(end * 1e9))
        span.end(epoch_offset_ns + int(exchange.ended * 1e9))

    def shutdown(self) -> None:
        """Send the spans that are left; takes a few seconds at most."""
        self._provider.shutdown()


def _phase_spans(
    phases: Phases, exchange_end: float
) -> Iterator[tuple[str, float, float, Mapping[str, Value]]]:
    """Yield name, start, end (clock.now() seconds) and attributes of each span. A phase that
    did not end lasts until the exchange's end."""
    cached: dict[str, Value] = {"omlx.cached_tokens": phases.cached_tokens}
    admitted = phases.admitted if phases.admitted is not None else phases.first
    if admitted is None:
        yield "queue", phases.queued, exchange_end, {}
        return
    prefill_began = admitted
    if phases.restored is not None:
        restore_began, prefill_began = phases.restored
        # The admission is reported a moment after the restoring has begun.
        admitted = min(admitted, restore_began)
    yield "queue", phases.queued, admitted, {}
    if phases.restored is not None:
        yield "restore", admitted, prefill_began, cached
    prompt: dict[str, Value] = {"omlx.prompt_tokens": phases.prompt_tokens, **cached}
    first_token = exchange_end if phases.first is None else phases.first
    yield "prefill", prefill_began, first_token, prompt
    if phases.first is None:
        return
    answer: dict[str, Value] = {
        "omlx.completion_tokens": phases.generated,
        "omlx.finish_reason": ",".join(sorted(set(phases.finished))) or "interrupted",
    }
    last_token = exchange_end if phases.last is None else phases.last
    yield "decode", first_token, last_token, answer


def make_tracer() -> OtelTracer:
    resource = Resource.create({"service.name": _SERVICE_NAME, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=_EXPORT_SECONDS)))
    return OtelTracer(provider)
