"""Spans of real requests, in the memory of the test."""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from omlx_server.api.http.exchange import REQUEST_ID, Exchange, Phases
from omlx_server.api.metrics.otel import OtelTracer
from omlx_server.errors import UsageError, how_to_install
from omlx_server.process.tracing import find_tracer
from omlx_server.settings import Settings
from tests.api.harness import CHAT, MARKER, UNPROBED, serving, wait_for

ON = Settings.of({"tracing": {"enabled": True}})
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorded:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = OtelTracer(provider)

    def of(self, exchange: Exchange) -> list[ReadableSpan]:
        self.tracer.record(exchange)
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


NOW = time.monotonic()


def exchange(*phases: Phases, parent: str = "", status: int = 200) -> Exchange:
    began_at = time.time() - (time.monotonic() - NOW) - 10
    past = NOW - 10, began_at, NOW
    return Exchange("req_1", "POST", parent, *past, CHAT, status, list(phases))


def phases(
    queued: float, admitted: float | None, first: float | None, last: float | None, cached: int = 0
) -> Phases:
    """Seconds before NOW."""
    moments = (None if moment is None else NOW - moment for moment in (admitted, first, last))
    made = Phases(100, NOW - queued, cached_tokens=cached, finished=["stop"])
    made.admitted, made.first, made.last = moments
    made.generated = 0 if first is None else 7
    return made


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    return span.attributes or {}


def test_a_request_is_a_tree_of_its_phases(recorded: Recorded) -> None:
    spans = recorded.of(exchange(phases(9, 8, 5, 1, cached=64)))
    assert [span.name for span in spans] == ["queue", "prefill", "decode", f"POST {CHAT}"]
    assert [round(seconds(span), 3) for span in spans] == [1, 3, 4, 10]
    root = spans[-1]
    assert root.parent is None
    for span in spans[:-1]:
        assert span.parent is not None and root.context is not None
        assert span.parent.span_id == root.context.span_id
    assert attributes(root)["omlx.request_id"] == "req_1"
    assert attributes(spans[1])["omlx.cached_tokens"] == 64
    assert attributes(spans[2])["omlx.completion_tokens"] == 7
    ago = time.monotonic() - NOW
    assert abs((root.end_time or 0) / 1e9 - (time.time() - ago)) < 5


@pytest.mark.parametrize("told", [7.9, 7.5])
def test_a_restore_stands_between_queue_and_prefill(recorded: Recorded, told: float) -> None:
    """Word that its turn came may be there before the restore begins, or after."""
    made = phases(9, told, 5, 1, cached=64)
    made.restored = NOW - 7.8, NOW - 7.2
    spans = recorded.of(exchange(made))
    assert [span.name for span in spans[:-1]] == ["queue", "restore", "prefill", "decode"]
    assert round(seconds(spans[2]), 1) == 2.2
    assert attributes(spans[1]) == {"omlx.prompt": 0, "omlx.cached_tokens": 64}
    for before, after in itertools.pairwise(spans[:-1]):
        assert before.end_time == after.start_time


def test_what_was_cut_ends_with_the_request(recorded: Recorded) -> None:
    spans = recorded.of(exchange(phases(9, None, None, None), phases(9, 4, None, None)))
    assert [(span.name, round(seconds(span))) for span in spans[:-1]] == [
        ("queue", 9),
        ("queue", 5),
        ("prefill", 4),
    ]


def test_the_clients_span_is_the_parent(recorded: Recorded) -> None:
    root = recorded.of(exchange(parent=PARENT))[-1]
    assert root.parent is not None and root.context is not None
    assert f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{root.parent.span_id:016x}" == PARENT.split("-")[2]


@pytest.mark.parametrize("parent", ["", "nonsense", PARENT[:-1], "ff" + PARENT[2:], f"{PARENT} x"])
def test_another_traceparent_is_passed_over(recorded: Recorded, parent: str) -> None:
    assert recorded.of(exchange(parent=parent))[-1].parent is None


def test_an_error_of_ours_is_one_in_the_trace_and_probes_are_none(recorded: Recorded) -> None:
    assert not recorded.of(exchange(status=503))[-1].status.is_ok
    before = len(recorded.exporter.get_finished_spans())
    quiet = exchange()
    quiet.route = "/metrics"
    assert len(recorded.of(quiet)) == before


# --- Whether there are any -----------------------------------------------------------------------


def test_spans_are_made_where_somebody_wants_them() -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    assert find_tracer(Settings(), {}) is None
    assert find_tracer(ON, {"OTEL_SDK_DISABLED": "true"}) is None
    for settings, environ in ((ON, {}), (Settings(), endpoint)):
        tracer = find_tracer(settings, environ)
        assert isinstance(tracer, OtelTracer)
        tracer.shutdown()


def test_without_the_extra_it_is_an_error_only_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    monkeypatch.delitem(sys.modules, "omlx_server.api.metrics.otel")
    with pytest.raises(UsageError, match=r"tracing\.enabled needs OpenTelemetry"):
        find_tracer(ON, {})
    assert find_tracer(Settings(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}) is None
    assert how_to_install("otel") in caplog.text


IMPORTED = "import sys, omlx_server.api.app as app; print('opentelemetry.sdk' in sys.modules)"


def test_opentelemetry_is_not_imported_where_nobody_wants_it() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


# --- A real server -------------------------------------------------------------------------------


class Collector(BaseHTTPRequestHandler):
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[str]:
    Collector.bodies.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def sent() -> list[Any]:
    """All spans that the collector has got."""
    requests = map(ExportTraceServiceRequest.FromString, Collector.bodies)
    return [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_a_server_sends_its_spans_and_nothing_private(
    collector: str, tiny_models: Path, tmp_path: Path
) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    sets = (f"models.dirs={tiny_models}", UNPROBED)
    with serving("org/tiny", tmp_path, *sets, environ=environ) as server:
        body = server.body(f"{MARKER} " * 60, max_tokens=5, ignore_eos=True, user=MARKER)
        first = server.post(body, x_request_id=MARKER)
        server.post(body)
        server.post(server.body(MARKER, max_tokens=40, stream=True, ignore_eos=True))
        server.http.get(f"{server.url}/health")
        server.http.get(f"{server.url}/no/such/path?q={MARKER}")
    spans = sent()
    roots = [span for span in spans if not span.parent_span_id]
    names = [span.name for span in roots]
    assert names == [f"POST {CHAT}"] * 3 + ["GET unknown"]
    ids = {a.value.string_value for a in roots[0].attributes if a.key == "omlx.request_id"}
    assert ids == {first.headers[REQUEST_ID]}
    for root in roots[:3]:
        parts = [span for span in spans if span.parent_span_id == root.span_id]
        names = [part.name for part in parts if part.name != "restore"]
        assert names == ["queue", "prefill", "decode"]
        ends = [root.start_time_unix_nano, *(part.end_time_unix_nano for part in parts)]
        assert [*sorted(ends), root.end_time_unix_nano] == [*ends, root.end_time_unix_nano]
        for before, after in itertools.pairwise(parts):
            assert before.end_time_unix_nano == after.start_time_unix_nano
    assert sum(span.name == "restore" for span in spans) == 2
    private = (MARKER.encode(), b"/no/such/path")
    assert not [body for body in Collector.bodies for word in private if word in body]


def test_a_collector_that_is_not_there_holds_nothing_up(tiny_models: Path, tmp_path: Path) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    sets = (f"models.dirs={tiny_models}", UNPROBED)
    with serving("org/tiny", tmp_path, *sets, environ=environ) as server:
        server.chat("Hi", max_tokens=1)
        server.terminate()
        wait_for(lambda: not server.running, 9)  # left to itself, the exporter tries for 10 s
        assert server.wait() == 0
