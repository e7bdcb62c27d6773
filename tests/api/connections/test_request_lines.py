"""The last log line of a request: what was asked of which model, how fast it was, how it ended."""

from typing import Any

import httpx
import pytest

from omlx_server import errors
from omlx_server.api.http.exchange import REQUEST_ID
from omlx_server.errors import OmlxError
from tests.api.harness import ADMIN_TOKEN, CHAT, MARKER, Json, ServerProcess
from tests.api.log_lines import lines_of

SAID = [{"role": "user", "content": "Tell me of lines."}]
ROUTES: dict[str, Json] = {
    CHAT: {"messages": SAID, "max_tokens": 3},
    "/v1/completions": {"prompt": "Tell me of lines.", "max_tokens": 3},
    "/v1/responses": {"input": "Tell me of lines.", "max_output_tokens": 16},
    "/v1/messages": {"messages": SAID, "max_tokens": 3},
}


def last_line(server: ServerProcess, response: httpx.Response) -> dict[str, Any]:
    return lines_of(server, response.headers[REQUEST_ID])[-1]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_line_of_each_api_says_what_was_done(
    tiny: ServerProcess, path: str, stream: bool
) -> None:
    body = {"model": "tiny", "stream": stream, **ROUTES[path]}
    response = tiny.http.post(f"{tiny.url}{path}", json=body)
    assert response.status_code == 200, response.text
    line = last_line(tiny, response)
    assert (line["route"], line["status"], line["model"]) == (path, 200, "org/tiny")
    assert line["prompt_tokens"] > 0 <= line["cached_tokens"]
    assert 0 < line["completion_tokens"] <= 16
    assert line["finish_reason"] in ("stop", "length")
    assert 0 < line["ttft_seconds"] < line["seconds"]
    assert not {"error", "param", "reason", "path"} & line.keys()


@pytest.mark.parametrize(
    ("body", "status", "error", "param", "reason"),
    [
        (b"", 400, "invalid_request_error", None, "the body is empty; a JSON object is expected"),
        (b"[]", 400, "invalid_request_error", None, "the body must be a JSON object"),
        ({}, 400, "invalid_request_error", "model", "missing"),
        (
            {"model": "tiny", "messages": MARKER},
            400,
            "invalid_request_error",
            "messages",
            "list_type",
        ),
        (
            {"model": "tiny", "messages": [{"role": MARKER, "content": "x"}]},
            400,
            "invalid_request_error",
            "messages.0.role",
            "literal_error",
        ),
        ({"model": MARKER, "messages": SAID}, 404, "model_not_found", "model", None),
        (
            {"model": "tiny", "messages": [{"role": "user", "content": "x " * 9000}]},
            400,
            "context_length_exceeded",
            "messages",
            "This model's maximum context length is 4096 tokens.",
        ),
    ],
)
def test_a_line_of_a_refusal_has_its_code_its_field_and_why(
    tiny: ServerProcess,
    body: bytes | Json,
    status: int,
    error: str,
    param: str | None,
    reason: str | None,
) -> None:
    """It never has what the client has sent, which may be private."""
    response = tiny.post_raw(body) if isinstance(body, bytes) else tiny.post(body)
    assert response.status_code == status, response.text
    line = last_line(tiny, response)
    assert (line["status"], line["error"], line.get("param")) == (status, error, param)
    assert str(line.get("reason")).startswith(str(reason))
    words = f"POST {CHAT}: {status} in {line['seconds']:.3f} s"
    assert line["message"].startswith(words) and error in line["message"]
    assert (f"param {param}" in line["message"]) is (param is not None)
    assert MARKER not in tiny.log


def test_a_client_that_leaves_its_stream_is_in_the_log(tiny: ServerProcess) -> None:
    body = tiny.body("Count for ever", max_tokens=4000, stream=True, ignore_eos=True)
    with tiny.http.stream("POST", f"{tiny.url}{CHAT}", json=body) as response:
        next(response.iter_bytes())
    line = last_line(tiny, response)
    assert (line["status"], line["error"]) == (200, "client_left")
    assert line["finish_reason"] == "interrupted"
    assert 0 < line["completion_tokens"] < 4000
    tiny.wait_idle()


def test_a_client_that_leaves_before_its_answer_is_in_the_log(tiny: ServerProcess) -> None:
    name = f"req_{7:032x}"
    body = tiny.body("Count for ever", max_tokens=4000, ignore_eos=True)
    with httpx.Client(timeout=0.3, trust_env=False) as http, pytest.raises(httpx.ReadTimeout):
        http.post(f"{tiny.url}{CHAT}", json=body, headers={REQUEST_ID: name})
    line = lines_of(tiny, name)[-1]
    assert (line["status"], line["error"]) == (0, "client_left")
    assert ": no answer in " in line["message"] and line["model"] == "org/tiny"
    tiny.wait_idle()


def test_a_line_of_an_order_names_its_model(tiny: ServerProcess) -> None:
    url, owner = f"{tiny.url}/admin/models/pin", {"x-admin-token": ADMIN_TOKEN}
    for pinned in (True, False):
        given = {"model": "tiny", "pinned": pinned}
        response = tiny.http.post(url, json=given, headers=owner)
        assert response.status_code == 200, response.text
        line = last_line(tiny, response)
        assert (line["route"], line["model"]) == ("/admin/models/pin", "org/tiny")
    refused = tiny.http.post(url, json={"model": "tiny"}, headers={"x-admin-token": MARKER})
    line = last_line(tiny, refused)
    assert (line["status"], line["error"]) == (refused.status_code, "admin_token_needed")
    assert line["reason"] == "no admin token, or a wrong one"
    assert MARKER not in tiny.log


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/chat/completions", f"POST /chat/completions. Did you mean {CHAT}?"),
        ("POST", f"/v1{CHAT}", f"POST /v1{CHAT}. Did you mean {CHAT}?"),
        ("GET", "/v1/health", "GET /v1/health. Did you mean /health?"),
        ("GET", "/no/%0asuch?key=x", "GET /no/%0asuch"),
        ("PUT", CHAT, f"Method Not Allowed: PUT {CHAT}"),
    ],
)
def test_the_error_of_an_unknown_route_says_its_path(
    tiny: ServerProcess, method: str, path: str, words: str
) -> None:
    url = httpx.URL(tiny.url).copy_with(raw_path=path.encode())
    response = tiny.http.request(method, url, json={})
    assert response.json()["error"]["message"].endswith(words)


def test_an_error_that_may_quote_the_request_has_no_reason_of_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    found = {kind for kind in kinds if issubclass(kind, OmlxError) and kind.quotes_request}
    own = {errors.BadBody, errors.ContextTooLong, errors.PromptTooLong}
    own |= {errors.TooManyTokens, errors.NoSeam}
    own |= {errors.UnsupportedMedia, errors.Forbidden, errors.PayloadTooLarge}
    of_clients = {kind for kind in kinds if issubclass(kind, errors.ClientError)}
    assert found == of_clients - own
    assert errors.BadRequest(MARKER).reason == "" == errors.ModelNotFound(MARKER).reason
    assert errors.LoadFailed("no room\nmore").reason == "no room more"
