"""The id of a request: in its answer, whatever that is, and in every log line that belongs to it;
and what such a line looks like."""

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from starlette.datastructures import Headers

from omlx_server.api.app import create_app
from omlx_server.api.http.exchange import REQUEST_ID, id_for, shown_path
from omlx_server.settings import Settings
from omlx_server.wiring.context import make_context
from tests.api.fixed import fixed_models
from tests.api.harness import (
    CHAT,
    MARKER,
    ServerProcess,
    samples,
    serving,
    stream_events,
    wait_for,
)
from tests.api.log_lines import lines, lines_of

OURS = re.compile(r"req_[0-9a-f]{32}")
SANE = "3f2b8c1e-9a4d-4e6f-8b2a-0123456789ab"


@pytest.fixture(scope="module")
def told(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its log is no terminal, so it is JSON."""
    place = tmp_path_factory.mktemp("told")
    sets = [f"models.dirs={tiny_models}", "logging.level=debug", "memory.activation_reserve=64MB"]
    with serving("org/tiny", place, *sets, "server.cors_origins=https://a.example") as server:
        yield server


# --- The header ----------------------------------------------------------------------------------


def test_the_clients_own_id_comes_back(told: ServerProcess) -> None:
    response = told.post(told.body("Hi", max_tokens=2), x_request_id=SANE)
    assert response.headers[REQUEST_ID] == SANE


@pytest.mark.parametrize("given", ["", "short", "a b", "x" * 300, MARKER, "hello-world-id", "é"])
def test_one_that_is_not_sane_is_replaced(told: ServerProcess, given: str) -> None:
    response = told.http.get(f"{told.url}/version", headers={REQUEST_ID.encode(): given.encode()})
    assert OURS.fullmatch(response.headers[REQUEST_ID])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=80))
def test_what_is_kept_is_hexadecimal_behind_a_short_prefix(text: str) -> None:
    raw = text.encode("latin-1", "replace")
    kept = id_for(Headers(raw=[(b"x-request-id", raw)]))
    assert OURS.fullmatch(kept) or (
        kept == text and re.fullmatch(r"[a-z]{0,8}[-_]?[-\dA-Fa-f]+", kept)
    )
    assert 8 <= len(kept) <= 73


@pytest.mark.parametrize(
    "given", [SANE, "req_0123456789abcdef", "0af7651916cd43dd8448eb211c80319c"]
)
def test_ids_as_people_make_them_are_kept(given: str) -> None:
    assert id_for(Headers({REQUEST_ID: given})) == given


def test_every_kind_of_answer_has_one_and_no_two_are_the_same(told: ServerProcess) -> None:
    http, url = told.http, told.url
    answers = [
        http.get(f"{url}/version"),
        http.get(f"{url}/no/such/route"),
        http.put(f"{url}{CHAT}"),
        http.get(f"{url}/version", headers={"host": "evil.example"}),
        told.post({}),
        told.post(told.body("Hi", max_tokens=1, stream=True)),
        http.options(
            f"{url}{CHAT}",
            headers={"origin": "https://a.example", "access-control-request-method": "POST"},
        ),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 405, 403, 400, 200, 200]
    ids = [answer.headers.get_list(REQUEST_ID) for answer in answers]
    assert all(len(given) == 1 and OURS.fullmatch(given[0]) for given in ids)
    assert len({given[0] for given in ids}) == len(answers)


def test_a_page_may_read_it(told: ServerProcess) -> None:
    response = told.http.get(f"{told.url}/version", headers={"origin": "https://a.example"})
    assert REQUEST_ID in response.headers["access-control-expose-headers"].lower()


# --- The log -------------------------------------------------------------------------------------


def test_all_lines_of_a_request_have_its_id(told: ServerProcess) -> None:
    """The engine's, too, which come from another thread."""
    response = told.post(told.body("Tell me of ids", max_tokens=3))
    found = lines_of(told, response.headers[REQUEST_ID])
    engines = response.json()["id"]
    assert any(line["logger"] == "omlx_server.engine.model_instance" for line in found)
    assert all(line.get("request_id") for line in lines(told) if engines in line["message"])
    last = found[-1]
    assert (last["method"], last["route"], last["status"]) == ("POST", CHAT, 200)
    assert 0 < last["seconds"] < 60
    assert last["level"] == "info"


def test_completions_and_messages_have_it_too(told: ServerProcess) -> None:
    asked = {
        "/v1/completions": {"model": told.model, "prompt": ["a", "b"], "max_tokens": 2},
        "/v1/messages": {
            "model": told.model,
            "max_tokens": 2,
            "messages": [{"role": "user", "content": "Hi"}],
        },
    }
    for path, body in asked.items():
        response = told.http.post(f"{told.url}{path}", json=body)
        assert response.status_code == 200, response.text
        found = lines_of(told, response.headers[REQUEST_ID])
        engine = [line for line in found if line["logger"] == "omlx_server.engine.model_instance"]
        assert len(engine) == (2 if path == "/v1/completions" else 1)
        assert [line["level"] for line in found].count("info") == 1


def test_lines_of_two_requests_at_once_are_kept_apart(told: ServerProcess) -> None:
    names = [f"req_{number:032x}" for number in range(4)]
    with httpx.Client(trust_env=False) as http:
        streams = []
        for name in names:
            body = told.body(f"Count, {name[-2:]}", max_tokens=30, stream=True, ignore_eos=True)
            request = http.build_request("POST", f"{told.url}{CHAT}", json=body)
            request.headers[REQUEST_ID] = name
            streams.append(http.send(request, stream=True))
        for stream in reversed(streams):
            stream.read()
    for name in names:
        found = lines_of(told, name)
        engine = [line for line in found if line["logger"] == "omlx_server.engine.model_instance"]
        assert len(engine) == 1, found
        assert sum("seconds" in line for line in found) == 1


def test_of_a_path_that_a_client_chose_the_log_has_the_pattern(told: ServerProcess) -> None:
    response = told.http.get(f"{told.url}/v1/responses/{MARKER}")
    assert lines_of(told, response.headers[REQUEST_ID])[-1]["route"].startswith("/v1/responses/{")
    assert MARKER not in told.log


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/no/such", "/no/such"),
        (f"/no/such?key={MARKER}&q=1", "/no/such"),
        ("/a%0a%1b%5b31mb%00", "/a%0a%1b%5b31mb%00"),
        ("/gr%C3%B6%C3%9Fe", "/gr%C3%B6%C3%9Fe"),
        (f"/{'x' * 3000}", f"/{'x' * 199}..."),
    ],
)
def test_the_path_of_an_unknown_route_is_in_the_log(
    told: ServerProcess, path: str, shown: str
) -> None:
    """In one line of a bounded length, and without its query."""
    for method in ("GET", "POST"):
        url = httpx.URL(told.url).copy_with(raw_path=path.encode())
        response = told.http.request(method, url, json={})
        assert response.status_code == 404
        line = lines_of(told, response.headers[REQUEST_ID])[-1]
        assert (line["route"], line["path"], line["error"]) == ("unknown", shown, "not_found")
        assert (line["level"], line["status"]) == ("info", 404)
        assert line["message"].endswith(f", not_found, path {shown}")
    assert MARKER not in told.log


def test_what_a_path_is_made_of_is_shown_in_ascii() -> None:
    assert shown_path("/a\n\x1b[31m\u00e9\u2028".encode()) == "/a%0A%1B[31m%C3%A9%E2%80%A8"
    assert len(shown_path(b"\n" * 10_000)) == 203


def test_the_last_line_says_what_was_done(told: ServerProcess) -> None:
    body = told.body("Tell me of lines. " * 30, max_tokens=12, ignore_eos=True)
    for stream in (False, True):
        given = {**body, "stream": stream, "stream_options": {"include_usage": True}}
        response = told.post(given if stream else body)
        line = lines_of(told, response.headers[REQUEST_ID])[-1]
        usage = (stream_events(response.text)[-1] if stream else response.json())["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert (cached > 100) is stream
        assert line["model"] == "org/tiny"
        assert line["prompt_tokens"] == usage["prompt_tokens"]
        assert line["cached_tokens"] == cached
        assert line["completion_tokens"] == usage["completion_tokens"] == 12
        assert line["finish_reason"] == "length"
        assert 0 < line["ttft_seconds"] < line["seconds"]
        assert line["tokens_per_second"] > 11 / line["seconds"]
        start = f"POST {CHAT}: 200 in {line['seconds']:.3f} s, org/tiny, "
        assert line["message"].startswith(start)
        miss = line.get("cache_miss")
        assert response.headers.get("x-omlx-cache-miss", "").partition(";")[0] == (miss or "")
        assert (miss is None) is stream
        found = f"{cached} cached ({miss})" if miss else f"{cached} cached"
        words = f"{usage['prompt_tokens']} tokens in, {found}, 12 out, first after "
        assert words in line["message"] and line["message"].endswith(" tok/s, length")
        assert "error" not in line and "path" not in line


def test_the_last_line_of_several_prompts_has_their_sum(told: ServerProcess) -> None:
    body = {"model": told.model, "prompt": ["a b c", "d"], "max_tokens": 3, "ignore_eos": True}
    response = told.http.post(f"{told.url}/v1/completions", json={**body, "n": 2})
    line = lines_of(told, response.headers[REQUEST_ID])[-1]
    usage = response.json()["usage"]
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == usage["completion_tokens"] == 12
    assert line["cache_miss"] in ("diverged", "diverged,new_prefix", "new_prefix")


def test_choices_of_one_token_each_have_no_speed(told: ServerProcess) -> None:
    response = told.post(told.body("Tell me of speed", max_tokens=1, n=4))
    line = lines_of(told, response.headers[REQUEST_ID])[-1]
    assert line["completion_tokens"] == 4 and line["ttft_seconds"] > 0
    assert "tokens_per_second" not in line and "tok/s" not in line["message"]


def test_requests_are_counted_by_route_and_status(told: ServerProcess) -> None:
    def counted(method: str, route: str, status: str) -> float:
        name = f'omlx_http_requests_total{{method="{method}",route="{route}",status="{status}"}}'
        return samples(told.http.get(f"{told.url}/metrics").text).get(name, 0)

    def ask() -> None:
        told.post(told.body("Hi", max_tokens=1))
        told.post({})
        told.http.delete(f"{told.url}{CHAT}")
        for number in range(3):
            told.http.get(f"{told.url}/no/such/{number}")
            told.http.get(f"{told.url}/v1/responses/{MARKER}{number}")
        told.http.request("PROPFIND", f"{told.url}/no/such")

    asked = {
        ("POST", CHAT, "200"): 1,
        ("POST", CHAT, "400"): 1,
        ("DELETE", CHAT, "405"): 1,
        ("GET", "unknown", "404"): 3,
        ("GET", "/v1/responses/{id}", "404"): 3,
        ("other", "unknown", "404"): 1,
    }
    before = {key: counted(*key) for key in asked}
    ask()
    wait_for(lambda: {k: counted(*k) - before[k] for k in asked} == asked or None)
    text = told.http.get(f"{told.url}/metrics").text
    routes = {s.labels["route"] for s in family(text, "omlx_http_requests")}
    assert len(routes) < 40 and not [route for route in routes if MARKER in route]


def family(text: str, name: str) -> list[Sample]:
    found = next(f for f in text_string_to_metric_families(text) if f.name == name)
    return list(found.samples)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "route"),
    [
        ("POST", CHAT, {"authorization": "Bearer wrong"}, 401, CHAT),
        ("GET", f"/v1/responses/{MARKER}", {}, 401, "/v1/responses/{id}"),
        ("POST", "/nowhere", {}, 401, "unknown"),
        ("POST", CHAT, {"authorization": "Bearer right", "content-type": "a/b"}, 415, CHAT),
        ("POST", CHAT, {"host": "evil.example"}, 403, CHAT),
        ("DELETE", CHAT, {"authorization": "Bearer right"}, 405, CHAT),
    ],
)
def test_a_refusal_is_logged_with_its_route(
    method: str,
    path: str,
    headers: dict[str, str],
    status: int,
    route: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a path behind a route nothing stands there that a client chose."""
    given = Settings.of({"auth": {"api_keys": ("right",)}})
    transport = httpx.ASGITransport(create_app(make_context(fixed_models(), given)))

    async def asking() -> int:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.request(method, path, headers=headers)).status_code

    with caplog.at_level(logging.DEBUG, "omlx_server.api.http.exchange"):
        assert asyncio.run(asking()) == status
    (record,) = caplog.records
    fields = record.__dict__["fields"]
    assert (fields["status"], fields["route"]) == (status, route)
    assert fields.get("path") == (path if route == "unknown" else None)
    assert fields["error"] and fields["error"] in record.getMessage()
    assert MARKER not in record.getMessage()


def test_every_line_is_an_object_with_time_level_and_logger(told: ServerProcess) -> None:
    told.post(told.body("Hi", max_tokens=1))
    rest = [line for line in told.log.splitlines() if not line.startswith("{")]
    assert [line for line in rest if not line.startswith("omlx-server is ready")] == []
    for line in lines(told):
        assert {"time", "level", "logger", "message"} <= line.keys()
        assert line["time"].endswith("+00:00")


def test_a_queue_time_is_that_of_the_queue_alone(told: ServerProcess) -> None:
    """Of a request that waits for nobody it is next to nothing, however long its answer takes. Once
    in five times is enough: the machine may pause in the queue."""
    told.wait_idle()
    shares = [share_in_queue(told, number) for number in range(5)]
    assert 0 <= min(shares) < 1 / 2


def share_in_queue(told: ServerProcess, number: int) -> float:
    """Of the time that a request takes."""

    def metric(name: str) -> float:
        return samples(told.http.get(f"{told.url}/metrics").text)[f"vllm:{name}"]

    names = ("request_queue_time_seconds_sum", "request_queue_time_seconds_count")
    before = [metric(name) for name in names]
    started = time.monotonic()
    told.post(told.body(f"{number} " + "word " * 900, max_tokens=1))
    spent = time.monotonic() - started
    after = [metric(name) for name in names]
    assert after[1] - before[1] == 1
    return (after[0] - before[0]) / spent
