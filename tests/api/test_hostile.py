"""Malformed and hostile requests: each a 4xx in the envelope, and the next request is answered."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from tests.api.bad_values import NOT_EVEN_JSON, RAW_VALUES
from tests.api.harness import CHAT, MARKER, ServerProcess, assert_envelope

HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
USER = {"role": "user", "content": f"Hi {MARKER}"}
IMAGE: Any = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:1/{MARKER}.png"}}
NOT_TEXTS: list[Any] = [5, 1.5, True, [MARKER], {MARKER: 1}]
NOT_NUMBERS: list[Any] = ["1", MARKER, True, False, [1], {MARKER: 1}]
NOT_WHOLE: list[Any] = [*NOT_NUMBERS, 1.5, 1.0, 1e300, 10**30, -(10**30)]
NOT_BOOLS: list[Any] = ["yes", MARKER, 0, 1, 1.0, [True], {MARKER: True}]
NOT_LISTS: list[Any] = [5, MARKER, True, {MARKER: 1}]

WRONG_VALUES: dict[str, list[Any]] = {
    "model": [*NOT_TEXTS, "", None, "x" * 1025],
    "messages": [*NOT_LISTS, [], None, [[]], ["user"], [None], [5]],
    "temperature": [*NOT_NUMBERS, -0.1, 2.1, 1e300, 10**30],
    "top_p": [*NOT_NUMBERS, -0.1, 1.1],
    "top_k": [*NOT_WHOLE, -2],
    "min_p": [*NOT_NUMBERS, -0.1, 1.1],
    "repetition_penalty": [*NOT_NUMBERS, 0, -1, 11],
    "presence_penalty": [*NOT_NUMBERS, -2.1, 2.1],
    "frequency_penalty": [*NOT_NUMBERS, -2.1, 2.1],
    "max_tokens": [*NOT_WHOLE, 0, -2, 1 << 40],
    "max_completion_tokens": [*NOT_WHOLE, 0, -2, 1 << 40],
    "min_tokens": [*NOT_WHOLE, -1],
    "n": [*NOT_WHOLE, 0, -1, 129],
    "seed": [*NOT_WHOLE, 1 << 64, -(1 << 63) - 1],
    "stop": [5, True, {MARKER: 1}, "", [""], [5], [None], [[MARKER]], ["x"] * 33, "x" * 1001],
    "stop_token_ids": [*NOT_LISTS, ["5"], [True], [-1], [1.0], [999_999_999], [1 << 40]],
    "stream": NOT_BOOLS,
    "stream_options": [5, MARKER, True, [], {"include_usage": "yes"}, {"include_usage": 1}],
    "logprobs": NOT_BOOLS,
    "ignore_eos": NOT_BOOLS,
    "include_stop_str_in_output": NOT_BOOLS,
    "add_generation_prompt": NOT_BOOLS,
    "continue_final_message": NOT_BOOLS,
    "priority": [*NOT_WHOLE, 10**6],
    "logit_bias": [
        *NOT_LISTS[:3],
        [1],
        {MARKER: 1},
        {"-1": 1},
        {"1.0": 1},
        {"٣": 1},
        {" 5": 1},
        {"999999999": 100},
        {"9" * 5000: 1},
        {"409": 1},
        {"5": MARKER},
        {"5": True},
        {"5": None},
        {"5": 101},
        {"5": -100.5},
        {MARKER: MARKER},
    ],
    "reasoning_effort": [5, MARKER, "HIGH", True],
    "chat_template_kwargs": [
        5,
        MARKER,
        [1],
        {"padding": "max_length", "max_length": 1_000_000_000},
        {"tokenize": True},
        {"chat_template": MARKER},
        {"enable_thinking": [MARKER] * 1000},
        {"enable_thinking": MARKER * 10},
    ],
    "modalities": [5, ["audio"], ["text", "audio"], [MARKER]],
    "tools": [
        5,
        MARKER,
        {},
        [5],
        [{}],
        [{"type": "function"}],
        [{"type": MARKER, "custom": {"name": MARKER}}],
        [{"type": "custom", "custom": {"name": MARKER, "format": {"type": MARKER}}}],
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "function", "function": {"name": MARKER + " " + MARKER}}],
        [{"type": "function", "function": {"name": MARKER, "parameters": MARKER}}],
        [{"type": "function", "function": {"name": MARKER, "strict": MARKER}}],
        [{"type": "function", "function": {"name": MARKER}}] * 2,
    ],
    "parallel_tool_calls": [5, MARKER],
    "thinking_budget": [-1, 1.5, MARKER, True],
    "tool_choice": ["required", MARKER, {"type": "function", "function": {"name": MARKER}}],
    "response_format": [
        MARKER,
        {},
        {"type": MARKER},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": MARKER}},
    ],
    "structured_outputs": [MARKER, {}, {"json": MARKER}],
    "chat_template": ["{{ messages }}" + MARKER],
    "repetition_context_size": [1e12, 5],
    "bad_words": [MARKER, [""], [5], [MARKER * 30]],
    "grammar": [5],
    "guided_regex": [5],
    "guided_choice": [[], [5], MARKER],
    "json_schema": [MARKER],
    "functions": [[{"name": MARKER}]],
    "audio": [{"voice": MARKER}],
}

# Who wrote a grammar must see where it is wrong, so these are told back to that client.
WRONG_GRAMMARS: dict[str, list[Any]] = {
    "response_format": [
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "word"}}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "#/word"}}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}},
    ],
    "structured_outputs": [{"word": "word"}, {"regex": "(word"}, {"grammar": "word"}],
    "grammar": ["word", "start: word"],
    "guided_regex": ["(word", "a{9999999}"],
    "json_schema": [{"type": "word"}],
}

NOT_CALLS: list[Any] = [5, MARKER, {}, [5], [MARKER], []]
NOT_PARTS: list[Any] = [
    IMAGE,
    {"type": "input_audio", "input_audio": {"data": MARKER, "format": "wav"}},
    {"type": "video_url", "video_url": {"url": MARKER}},
    {"type": "text"},
    {"type": "text", "text": None},
    {"type": "text", "text": 5},
    {"type": 5, "text": MARKER},
    {"text": MARKER},
    {"type": MARKER, "text": MARKER},
    None,
    [],
]

WRONG_MESSAGES: dict[str, list[Any]] = {
    "unknown-role": [{**USER, "role": "wizard"}, {**USER, "role": 5}, {**USER, "role": None}],
    "no-role": [{"content": MARKER}],
    "no-content": [{"role": "user"}, {"role": "user", "content": None}, {"role": "assistant"}],
    "content-type": [{"role": "user", "content": x} for x in (5, True, {MARKER: 1}, [MARKER])],
    "content-part": [{"role": "user", "content": [part]} for part in NOT_PARTS],
    "tool-without-call": [{"role": "tool", "content": MARKER}],
    "tool-calls-type": [{"role": "assistant", "tool_calls": x} for x in NOT_CALLS],
    "name": [{**USER, "name": 5}, {**USER, "name": MARKER * 100}],
}

COMBINATIONS: dict[str, dict[str, Any]] = {
    "stream-options-without-stream": {"stream_options": {"include_usage": True}},
    "stream-options-with-stream-false": {"stream": False, "stream_options": {}},
    "top-logprobs-without-logprobs": {"top_logprobs": 2},
    "top-logprobs-0-without-logprobs": {"top_logprobs": 0, "logprobs": False},
    "top-logprobs-21": {"logprobs": True, "top_logprobs": 21},
    "top-logprobs-negative": {"logprobs": True, "top_logprobs": -1},
    "top-logprobs-text": {"logprobs": True, "top_logprobs": MARKER},
    "top-logprobs-true": {"logprobs": True, "top_logprobs": True},
    "continue-and-open": {"continue_final_message": True, "add_generation_prompt": True},
    "continue-empty": {"continue_final_message": True, "messages": []},
}


def fields(name: str, value: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [USER], "max_tokens": 4}
    return {**body, name: value}


def numbered(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{number}")
        for name, values in table.items()
        for number, value in enumerate(values)
    ]


def named(table: dict[str, Any]) -> list[Any]:
    return [pytest.param(value, id=name) for name, value in table.items()]


@pytest.fixture(scope="module")
def song(tiny: ServerProcess) -> Iterator[str]:
    """The canary's answer before it all. The same process must give it after each test."""
    song, pid = tiny.canary(), tiny.pid
    yield song
    assert tiny.running and tiny.pid == pid
    assert tiny.load()["state"] == "ready"
    assert "Traceback" not in tiny.log
    assert "ERROR" not in tiny.log


@pytest.fixture(autouse=True)
def the_next_request_is_answered(tiny: ServerProcess, song: str) -> Iterator[None]:
    yield
    assert tiny.canary() == song


def refused(tiny: ServerProcess, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    return assert_envelope(tiny.post(body), status)


# -- bodies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), numbered(WRONG_GRAMMARS))
def test_a_wrong_grammar_is_refused(tiny: ServerProcess, name: str, value: Any) -> None:
    error = refused(tiny, fields(name, value))
    assert error["param"] is not None and error["param"].split(".")[0] == name


@pytest.mark.parametrize(("name", "value"), numbered(WRONG_VALUES))
def test_a_wrong_value_is_refused(tiny: ServerProcess, name: str, value: Any) -> None:
    error = refused(tiny, fields(name, value))
    assert error["type"] == "invalid_request_error"
    assert error["param"].partition(".")[0] == name


def test_the_name_of_an_unknown_template_argument_is_not_echoed(tiny: ServerProcess) -> None:
    refused(tiny, fields("chat_template_kwargs", {MARKER: True}))


@pytest.mark.parametrize(("name", "value"), numbered(WRONG_MESSAGES))
@pytest.mark.parametrize("place", ["only", "last"])
def test_a_wrong_message_is_refused(tiny: ServerProcess, name: str, value: Any, place: str) -> None:
    messages = [value] if place == "only" else [USER, value]
    error = refused(tiny, fields("messages", messages))
    assert error["param"].startswith(f"messages.{len(messages) - 1}")


@pytest.mark.parametrize("combination", named(COMBINATIONS))
def test_fields_that_contradict_each_other_are_refused(
    tiny: ServerProcess, combination: dict[str, Any]
) -> None:
    assert refused(tiny, {**fields("model", "tiny"), **combination})["param"]


@pytest.mark.parametrize("content", named(NOT_EVEN_JSON))
def test_a_body_that_is_no_request_is_refused(tiny: ServerProcess, content: bytes) -> None:
    assert_envelope(tiny.post_raw(content), 400)


@pytest.mark.parametrize("pair", named(RAW_VALUES))
def test_numbers_and_texts_beyond_json_are_refused(tiny: ServerProcess, pair: str) -> None:
    whole = orjson.dumps(fields("max_tokens", 4)).decode()
    assert_envelope(tiny.post_raw(f"{whole[:-1]}, {pair}}}".encode()), 400)


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_field_is_named(tiny: ServerProcess, missing: str) -> None:
    body = fields("max_tokens", 4)
    del body[missing]
    assert refused(tiny, body)["param"] == missing


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["no/such", "../../etc/passwd", "/tmp", "x" * 1024, "é\n"])
def test_no_other_model_is_ever_loaded(tiny: ServerProcess, name: str, stream: bool) -> None:
    error = refused(tiny, {**fields("model", name), "stream": stream}, 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert len(error["message"]) < 500


# -- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4096, 5000, 200_000, 8_000_000])
def test_a_prompt_beyond_the_context_is_refused_at_once(tiny: ServerProcess, size: int) -> None:
    memory, cpu = tiny.memory, tiny.cpu
    response = tiny.post(fields("messages", [{"role": "user", "content": "7" * size}]))
    error = assert_envelope(response, 400)
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 4096 tokens.")
    assert tiny.cpu - cpu < 1
    assert tiny.memory - memory < 64 << 20


def test_many_small_messages_are_one_long_prompt(tiny: ServerProcess) -> None:
    messages = [{"role": "user", "content": ""}] * 1500
    assert refused(tiny, fields("messages", messages))["code"] == "context_length_exceeded"


def test_very_many_small_messages_are_one_long_prompt(tiny: ServerProcess) -> None:
    messages = [{"role": "user", "content": ""}] * 9999
    assert refused(tiny, fields("messages", messages))["code"] == "context_length_exceeded"


def test_the_number_of_messages_is_bounded(tiny: ServerProcess) -> None:
    messages = [{"role": "user", "content": ""}] * 10_001
    assert refused(tiny, fields("messages", messages))["param"] == "messages"


def test_a_declared_body_over_the_cap_is_refused_unread(tiny: ServerProcess) -> None:
    with connected(tiny) as stream:
        stream.sendall(f"{HEAD}Content-Length: {33 << 20}\r\n\r\n".encode())
        answer = stream.recv(65536)
        answer += b"" if b'"error"' in answer else stream.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"code":"request_too_large"' in answer


def test_a_chunked_body_over_the_cap_is_refused_while_it_comes(tiny: ServerProcess) -> None:
    """The answer is there before the body has an end, and what still comes is not kept."""
    memory = tiny.memory
    chunk = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
    with connected(tiny) as stream:
        stream.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(33):
            stream.sendall(chunk)
        assert stream.recv(65536).startswith(b"HTTP/1.1 413")
        for _ in range(200):
            stream.sendall(chunk)
        assert tiny.memory - memory < 64 << 20


def test_a_body_at_the_cap_is_read(tiny: ServerProcess) -> None:
    body = orjson.dumps(tiny.body("Hi", max_tokens=2))
    padded = body + b" " * ((32 << 20) - len(body))
    assert tiny.post_raw(padded).status_code == 200
    assert_envelope(tiny.post_raw(padded + b" "), 413)


# -- other doors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "a/b", "json"],
)
def test_only_json_is_taken(tiny: ServerProcess, kind: str) -> None:
    content = orjson.dumps(tiny.body("Hi", max_tokens=2))
    error = assert_envelope(tiny.post_raw(content, content_type=kind), 415)
    assert error["code"] == "unsupported_media_type"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_may_be_written_in_several_ways(tiny: ServerProcess, kind: str) -> None:
    content = orjson.dumps(tiny.body("Hi", max_tokens=2))
    assert tiny.post_raw(content, content_type=kind).status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/health", "/", "/no/such"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "["])
def test_a_foreign_host_is_refused(tiny: ServerProcess, path: str, host: str) -> None:
    response = tiny.http.get(f"{tiny.url}{path}", headers={"host": host})
    assert assert_envelope(response, 403)["code"] == "forbidden"


@pytest.mark.parametrize("host", ["localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:1"])
def test_our_own_host_is_taken(tiny: ServerProcess, host: str) -> None:
    assert tiny.http.get(f"{tiny.url}/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost.evil.example", "file://", MARKER]
)
def test_a_foreign_origin_is_refused(tiny: ServerProcess, origin: str) -> None:
    response = tiny.post(tiny.body("Hi", max_tokens=2), origin=origin)
    assert assert_envelope(response, 403)["code"] == "forbidden"
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_our_own_origin_is_taken(tiny: ServerProcess) -> None:
    assert tiny.post(tiny.body("Hi", max_tokens=2), origin="http://localhost:3000").is_success


@pytest.mark.parametrize(
    "path", ["/nowhere", "/v1", "/v1/", "/v1/chat", f"{CHAT}/", "//v1/models", "/docs", "/redoc"]
)
def test_an_unknown_route_is_not_found(tiny: ServerProcess, path: str) -> None:
    assert assert_envelope(tiny.http.get(f"{tiny.url}{path}"), 404)["code"] == "not_found"
    response = tiny.http.post(f"{tiny.url}{path}", json={})
    assert assert_envelope(response, 404)["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *((method, CHAT) for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS")),
        ("DELETE", "/v1/models"),
        ("DELETE", "/v1/models/tiny"),
        ("PUT", "/health"),
    ],
)
def test_a_wrong_method_is_told_so(tiny: ServerProcess, method: str, path: str) -> None:
    response = tiny.http.request(method, f"{tiny.url}{path}")
    assert assert_envelope(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"]


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: \xb2\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_hardly_http_hurts_nobody(tiny: ServerProcess, start: bytes) -> None:
    with connected(tiny) as stream:
        stream.sendall(start)
        stream.shutdown(socket.SHUT_WR)
        while stream.recv(65536):
            pass


def test_half_a_request_holds_nobody(tiny: ServerProcess, song: str) -> None:
    halves = [connected(tiny) for _ in range(100)]
    for number, stream in enumerate(halves):
        rest = "" if number % 2 else "Content-Length: 9\r\n\r\n{"
        stream.sendall((HEAD + rest).encode())
    assert tiny.canary() == song
    for stream in halves:
        stream.close()


@pytest.mark.parametrize("number", range(3))
def test_hostile_requests_among_honest_ones(tiny: ServerProcess, song: str, number: int) -> None:
    """Refused while others are being answered, the batch goes on."""
    body = tiny.body("Count.", max_tokens=400, ignore_eos=True, stream=True)
    with tiny.http.stream("POST", f"{tiny.url}{CHAT}", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        for name in ("temperature", "logit_bias", "messages"):
            for value in WRONG_VALUES[name][:3]:
                refused(tiny, fields(name, value))
        assert tiny.canary() == song
        assert list(lines)[-2] == "data: [DONE]"
    tiny.wait_idle()


def connected(tiny: ServerProcess) -> socket.socket:
    url = httpx.URL(tiny.url)
    return socket.create_connection((url.host, url.port or 80), timeout=60)
