"""Exchanges as OpenTelemetry spans, made when an exchange has ended: nothing is measured twice.

Needs the extra "otel". A span for the request, and below it for each prompt

    queue      submitted ... its turn came
    restore    its turn came ... what is known of the prompt is put together, if anything is
    prefill    then ... first token
    decode     first token ... last token

What did not come to an end, ends with the request. No span holds anything of a prompt or answer.
"""

import re
import time
from collections.abc import Iterator, Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from omlx_server import __version__
from omlx_server.api.http.exchange import Exchange
from omlx_server.api.http.phases import Phases

Value = str | int | float | bool

_NAME = "omlx-server"
# W3C: version, trace, parent span, flags.
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_EXPORT_SECONDS = 2
_IGNORED = ("/metrics", "/health", "/health/live", "/health/ready")


class OtelTracer:
    """Spans of one provider. Any thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(_NAME, __version__)

    def record(self, exchange: Exchange) -> None:
        if exchange.route in _IGNORED:
            return
        clock = time.time_ns() - int(time.monotonic() * 1e9)
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.route}",
            context_of(exchange.parent),
            SpanKind.SERVER,
            _of_request(exchange),
            start_time=clock + int(exchange.started * 1e9),
        )
        if exchange.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        below = set_span_in_context(span)
        for number, phases in enumerate(exchange.phases):
            self._phases(phases, number, exchange.ended, below, clock)
        span.end(clock + int(exchange.ended * 1e9))

    def shutdown(self) -> None:
        """Send what is left; takes a few seconds at most."""
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


def _of_request(exchange: Exchange) -> dict[str, Value]:
    return {
        "http.request.method": exchange.method,
        "http.route": exchange.route,
        "http.response.status_code": exchange.status,
        "omlx.request_id": exchange.id,
    }


def _spans(phases: Phases, end: float) -> Iterator[tuple[str, float, float, Mapping[str, Value]]]:
    """Name, start, stop and attributes of what has begun."""
    admitted = phases.admitted if phases.admitted is not None else phases.first
    if admitted is not None and phases.restored is not None:
        admitted = min(admitted, phases.restored[0])  # word of it comes a moment later
    yield "queue", phases.queued, _or(admitted, end), {}
    if admitted is None:
        return
    read_from = admitted
    tokens: dict[str, Value] = {
        "omlx.prompt_tokens": phases.prompt_tokens,
        "omlx.cached_tokens": phases.cached_tokens,
    }
    if phases.restored is not None:
        read_from = phases.restored[1]
        yield "restore", admitted, read_from, {"omlx.cached_tokens": phases.cached_tokens}
    yield "prefill", read_from, _or(phases.first, end), tokens
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


def context_of(traceparent: str) -> Context:
    """That of the span in whose course a client asks; an empty one otherwise."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return Context()
    trace, span, flags = (int(part, 16) for part in match.groups())
    remote = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(remote), Context())


def make_tracer() -> OtelTracer:
    """Sends to where OTEL_EXPORTER_OTLP_ENDPOINT says, by default to this machine."""
    resource = Resource.create({"service.name": _NAME, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=_EXPORT_SECONDS)))
    return OtelTracer(provider)
