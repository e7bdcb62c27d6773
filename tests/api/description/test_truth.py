"""Real answers of every route against the document and against what is published of it: whole
ones, streams and refusals. What is sent but not declared is wrong, and so is what is declared but
never sent."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from jsonschema import ValidationError

from omlx_server.api.http.static_files import FOLDER
from tests.api.description.judge import Judge
from tests.api.description.server import CHAT, EMBEDDING, LEFTOVER, RANKING, SEEING
from tests.api.harness import ADMIN_TOKEN, ServerProcess
from tests.api.images import forms
from tests.api.published import judge as published

Json = dict[str, Any]
Ask = Callable[..., httpx.Response]

TALK = [{"role": "user", "content": "Sing a long song, and then another one of the same kind."}]
SCHEMA = {"type": "object", "properties": {"x": {"enum": ["a"]}}, "required": ["x"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
GRAMMAR = {"syntax": "regex", "definition": "[a-c]{9}"}
CUSTOM = {
    "type": "custom",
    "custom": {"name": "g", "format": {"type": "grammar", "grammar": GRAMMAR}},
}
OWN_CUSTOM = {"type": "custom", "name": "g", "format": {"type": "grammar", **GRAMMAR}}
SPACE = {
    "type": "namespace",
    "name": "n",
    "description": "d",
    "tools": [{"type": "function", **FUNCTION}, OWN_CUSTOM],
}
SILENT = {"chat_template_kwargs": {"enable_thinking": False}}
SHORT = {"max_tokens": 12, "ignore_eos": True}
LOGGED = {"logprobs": True, "top_logprobs": 2}
CHATS: list[Json] = [
    {**SHORT, **LOGGED},
    {**SHORT, **LOGGED, **SILENT, "n": 2},
    {**SILENT, "tools": [TOOL], "tool_choice": "required", "max_tokens": 100},
    {**SHORT, **SILENT, "stop": "e", "seed": 3},
    {**SILENT, "tools": [CUSTOM], "tool_choice": "required", "max_tokens": 100},
]
TEXTS: list[Json] = [
    {"prompt": "Hi", "max_tokens": 3, "logprobs": 2},
    {"prompt": ["Hi", "Ho"], "max_tokens": 0, "echo": True, "logprobs": 0},
    {"prompt": [65, 66], "max_tokens": 2, "n": 2, "best_of": 2},
]
MESSAGES: list[Json] = [
    {"max_tokens": 12, "ignore_eos": True},
    {
        "max_tokens": 100,
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "disabled"},
    },
    {"max_tokens": 9, "stop_sequences": ["a"], **SILENT, "ignore_eos": True},
]
FORMAT = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True, "description": "d"}
CALLED = [
    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"role": "assistant", "content": "Ho"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "7"},
    {"type": "custom_tool_call", "call_id": "d", "name": "g", "namespace": "n", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": "8"},
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "s"}],
        "content": [{"type": "reasoning_text", "text": "r"}],
    },
]
RESPONSES: list[Json] = [
    {
        **SILENT,
        "input": "Hi",
        "max_output_tokens": 9,
        "ignore_eos": True,
        "top_logprobs": 2,
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low", "summary": "auto"},
    },
    {
        **SILENT,
        "input": "Hi",
        "tools": [{"type": "function", **FUNCTION}, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "f"},
        "max_output_tokens": 90,
    },
    {
        "input": "Hi",
        "max_output_tokens": 9,
        "ignore_eos": True,
        "include": ["reasoning.encrypted_content"],
        "store": False,
    },
    {**SILENT, "input": "Hi", "text": {"format": FORMAT, "verbosity": "low"}},
    {
        **SILENT,
        "input": "Hi",
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "f"}],
        },
        "max_output_tokens": 90,
    },
    *(
        {**SILENT, "input": "Hi", "tools": [SPACE], "tool_choice": one, "max_output_tokens": 90}
        for one in (
            {"type": "function", "name": "f", "namespace": "n"},
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "g", "namespace": "n"}],
            },
        )
    ),
    {**SILENT, "input": CALLED, "max_output_tokens": 3, "ignore_eos": True},
]

WITHOUT_END = {"ignore_eos": True, "num_predict": 12}
OLLAMA: list[tuple[str, Json]] = [
    ("chat", {"messages": TALK, "options": WITHOUT_END, "logprobs": True, "top_logprobs": 1}),
    ("chat", {"messages": TALK, "options": WITHOUT_END, "think": False, "logprobs": True}),
    ("chat", {}),
    ("generate", {"prompt": "Hi", "options": WITHOUT_END, "logprobs": True, "top_logprobs": 1}),
    ("generate", {"prompt": "Hi", "options": WITHOUT_END, "raw": True, "logprobs": True}),
    ("generate", {}),
]

REFUSALS: list[tuple[int, Json]] = [
    (400, {"content": b"{"}),
    (400, {"json": {}}),
    (401, {"headers": {"authorization": "Bearer no"}, "json": {}}),
    (403, {"headers": {"host": "evil.example"}, "json": {}}),
    (404, {"json": {"model": "?", "messages": TALK, "max_tokens": 1, "prompt": "a"}}),
    (415, {"headers": {"content-type": "text/plain"}, "content": b"{}"}),
    (431, {"headers": {"x": "y" * 20_000}, "json": {}}),
]


@pytest.fixture(scope="module")
def ask(all_kinds: ServerProcess, judge: Judge) -> Iterator[Ask]:
    def asking(method: str, path: str, status: int = 200, **given: Any) -> httpx.Response:
        response = all_kinds.http.request(method, all_kinds.url + path, **given)
        judge.judge(response)
        published.judge(response)
        assert response.status_code == status, response.text
        return response

    yield asking


@pytest.fixture(scope="module")
def asked(ask: Ask, all_kinds: ServerProcess) -> Ask:
    """All that there is has been asked for once."""
    _plain(ask)
    _written(ask)
    _too_long(ask)
    _administered(ask)
    _read(ask)
    _as_ollama(ask)
    _cached(ask)
    _kept(ask)
    _shown(ask)
    _refused(ask)
    _at_work(ask, all_kinds)
    return ask


def _plain(ask: Ask) -> None:
    for path in ("/", "/health", "/health/live", "/health/ready", "/version", "/metrics"):
        ask("GET", path)
    ask("GET", "/", headers={"accept": "text/html"})
    ask("GET", "/web/about.json")
    ask("GET", "/progress/0123456789abcdef")
    ask("GET", "/web/no-such-file.js", 404)
    for path in one_of_each_type():
        ask("GET", f"/web/{path}")
    ask("GET", "/openapi.json")
    ask("GET", "/v1/models")
    ask("GET", f"/v1/models/{CHAT}")
    ask("GET", "/v1/models/a%2Fb", 404)


def one_of_each_type() -> list[str]:
    """Paths of the page's files."""
    files = sorted(path for path in FOLDER.rglob("*") if path.is_file())
    found = {path.suffix: path.relative_to(FOLDER).as_posix() for path in files}
    return list(found.values())


def _written(ask: Ask) -> None:
    streamed = {"stream": True}
    for path, bodies in (
        ("/v1/chat/completions", [{"messages": TALK, **body} for body in CHATS]),
        ("/v1/completions", TEXTS),
        ("/v1/messages", [{"messages": TALK, **body} for body in MESSAGES]),
        ("/v1/responses", RESPONSES),
    ):
        for body in bodies:
            ask("POST", path, json={"model": CHAT, "temperature": 2.0, **body})
            ask("POST", path, json={"model": CHAT, "temperature": 2.0, **body, **streamed})
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = {"messages": TALK, "prompt": "Hi", **SHORT, **streamed}
        ask("POST", path, json={"model": CHAT, **body, "stream_options": {"include_usage": True}})
    ask("POST", "/v1/messages/count_tokens", json={"model": CHAT, "messages": TALK})
    ask("POST", "/v1/responses/input_tokens", json={"input": "Hi"})
    made = ask("POST", "/v1/responses/compact", json={"model": CHAT, "input": CALLED}).json()
    more = [*made["output"], {"role": "user", "content": "Go on."}]
    body = {"model": CHAT, "input": more, "max_output_tokens": 3, "ignore_eos": True}
    ask("POST", "/v1/responses", json=body)
    ask("POST", "/v1/responses", json={**body, **streamed})
    broken = [{"type": "compaction", "encrypted_content": "omlxc1.AAAA"}]
    ask("POST", "/v1/responses", 400, json={"model": CHAT, "input": broken})


def _as_ollama(ask: Ask) -> None:
    for path, body in OLLAMA:
        for stream in (True, False):
            ask("POST", f"/api/{path}", json={"model": CHAT, "stream": stream, **body})
    _calling(ask)
    ask("POST", "/api/embed", json={"model": EMBEDDING, "input": ["Hi", "Ho"]})
    ask("POST", "/api/embeddings", json={"model": EMBEDDING, "prompt": "Hi"})
    for path in ("tags", "ps", "version"):
        ask("GET", f"/api/{path}")
    ask("POST", "/api/show", json={"model": CHAT})
    ask("POST", "/api/show", 400, json={})
    told = {"headers": {"x-admin-token": ADMIN_TOKEN}}
    for stream in (True, False):
        ask("POST", "/api/pull", json={"model": EMBEDDING, "stream": stream}, **told)
    ask("POST", "/api/pull", 404, json={"model": "nobody"}, **told)
    ask("POST", "/api/pull", 401, json={"model": EMBEDDING})


def _calling(ask: Ask) -> None:
    """Whether a random model calls a tool or gives the form is a matter of the seed."""
    body: Json = {"messages": TALK, "tools": [TOOL], "format": SCHEMA, "think": False}
    for seed in range(60):
        options = {"num_predict": 200, "temperature": 2, "seed": seed}
        made = ask("POST", "/api/chat", json={"model": CHAT, **body, "options": options})
        if "tool_calls" in made.text:
            return
    raise AssertionError("no seed made it call the tool")


def _administered(ask: Ask) -> None:
    """What was unloaded comes back when it is asked for."""
    ask("GET", "/admin/models", 401)
    ask("POST", "/admin/models/load", 401, json={"model": CHAT})
    told = {"headers": {"x-admin-token": ADMIN_TOKEN}}
    found = ask("GET", "/admin/models", **told).json()
    assert {model["state"] for model in found["models"] if model["name"] == CHAT} == {"loaded"}
    orders: list[tuple[str, Json]] = [
        ("load", {"model": RANKING}),
        ("pin", {"model": RANKING}),
        ("pin", {"model": RANKING, "pinned": False}),
        ("unload", {"model": EMBEDDING}),
    ]
    for order, body in orders:
        ask("POST", f"/admin/models/{order}", json=body, **told)
        ask("POST", f"/admin/models/{order}", 404, json={"model": "nobody"}, **told)
    _looked_at(ask, told)


def _looked_at(ask: Ask, told: Json) -> None:
    """By its owner, who changes a setting and fetches what is there."""
    body = {"model": CHAT, "messages": TALK, "max_tokens": 1}
    ask("POST", "/v1/chat/completions", json=body)
    for path in ("memory", "requests", "live?events=1", "cache", f"cache?model={CHAT}", "settings"):
        ask("GET", f"/admin/{path}", **told)
    for path, status in (("live?events=x", 400), ("cache?model=nobody", 404)):
        ask("GET", f"/admin/{path}", status, **told)
    ask("GET", f"/admin/cache?model={RANKING}", 409, **told)
    ask("POST", "/admin/cache/compare", json=body, **told)
    ask("PATCH", "/admin/settings", json={"logging.level": "info"}, **told)
    ask("PATCH", "/admin/settings", 400, json={"logging.level": "loud"}, **told)
    ask("POST", "/admin/settings/reload", **told)
    ask("POST", "/admin/settings/reset", json={"keys": ["logging.level"]}, **told)
    ask("POST", "/admin/settings/restart", 409, **told)
    code = ask("POST", "/admin/sign-in-code", **told).json()["code"]
    ask("POST", "/sign-in", json={"code": code})
    ask("POST", "/sign-in", 403, json={"code": "used"})
    ask("GET", f"/admin/models/resolve?name={CHAT}", **told)
    ask("POST", "/admin/models/pull", json={"model": EMBEDDING}, **told)
    ask("POST", "/admin/models/pull", 404, json={"model": "nobody"}, **told)
    ask("GET", "/admin/models/search", **told)
    ask("POST", "/admin/models/remove", json={"model": LEFTOVER}, **told)
    ask("POST", "/admin/models/remove", 404, json={"model": "nobody"}, **told)
    ask("POST", "/admin/models/remove", 409, json={"model": CHAT}, **told)


def _at_work(ask: Ask, server: ServerProcess) -> None:
    """While an answer is being written."""
    body = {"model": CHAT, "messages": TALK, "max_tokens": 900, "ignore_eos": True, "stream": True}
    url, told = f"{server.url}/v1/chat/completions", {"headers": {"x-admin-token": ADMIN_TOKEN}}
    with server.http.stream("POST", url, json=body) as answer:
        lines = answer.iter_lines()  # the connection is closed with it
        next(lines)
        assert ask("GET", "/admin/requests", **told).json()["at_work"]
        assert ask("GET", f"/progress/{answer.headers['x-request-id']}").json()["request"]


def _too_long(ask: Ask) -> None:
    """What is left out is told."""
    messages = [*[*TALK, {"role": "assistant", "content": "La la la."}] * 20, *TALK]
    body = {"model": CHAT, "messages": messages, "context_overflow": "truncate", **SHORT}
    for more in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
        ask("POST", "/v1/chat/completions", json={**body, **more})


def _read(ask: Ask) -> None:
    for encoding in ("float", "base64"):
        wanted = {"model": EMBEDDING, "input": ["Hi", "Ho"], "encoding_format": encoding}
        ask("POST", "/v1/embeddings", json=wanted)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        body: Json = {"model": RANKING, "query": "a", "documents": ["b", {"text": "c"}]}
        ask("POST", path, json={**body, "return_documents": True})
        ask("POST", path, json={**body, "top_n": 1})
    ask("POST", "/tokenize", json={"prompt": "größe", "return_token_strs": True})
    ask("POST", "/tokenize", json={"messages": TALK})
    ask("POST", "/tokenize", json={"content": "größe", "with_pieces": True})
    ask("POST", "/tokenize", json={"content": "größe"})
    ask("POST", "/detokenize", json={"tokens": [65, 66]})


def _cached(ask: Ask) -> None:
    talk = [{"role": "user", "content": "A long text, so that there are some blocks of it. " * 3}]
    body = {"model": CHAT, "messages": talk, "max_tokens": 1}
    ask("POST", "/v1/cache/export", 404, json={**body, "cache_salt": "never"})
    ask("POST", "/v1/chat/completions", json=body)
    assert ask("POST", "/v1/cache/probe", json=body).json()["blocks"]
    archive = ask("POST", "/v1/cache/export", json=body).content
    header = {"content-type": "application/x-tar"}
    ask("POST", "/v1/cache/import", content=archive, headers=header)
    ask("POST", "/v1/cache/import", 400, content=archive[:99], headers=header)
    id = ask("POST", "/v1/cache/pin", json=body).json()["id"]
    assert ask("GET", "/v1/cache/pins").json()["data"]
    ask("DELETE", f"/v1/cache/pins/{id}")
    ask("DELETE", f"/v1/cache/pins/{id}", 404)
    assert ask("POST", "/v1/cache/reset").json()["dropped"]
    assert ask("POST", "/reset_prefix_cache").json()["dropped"]


def _kept(ask: Ask) -> None:
    made = ask("POST", "/v1/responses", json={"model": CHAT, **RESPONSES[-1]}).json()
    path = f"/v1/responses/{made['id']}"
    ask("GET", path)
    ask("GET", f"{path}?stream=true", 400)
    assert ask("GET", f"{path}/input_items?limit=9&order=asc").json()["data"]
    ask("GET", f"{path}/input_items?limit=0", 400)
    ask("POST", f"{path}/cancel", 400)
    ask("DELETE", path)
    for method, of in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        ask(method, path + of, 404)


def _shown(ask: Ask) -> None:
    parts = [forms.text_part("What is it?", "input_text"), forms.input_image(forms.ONE)]
    items = [
        {"role": "user", "content": parts},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": parts},
    ]
    body = {"model": SEEING, "input": items, "max_output_tokens": 4}
    made = ask("POST", "/v1/responses", json=body).json()
    listed = ask("GET", f"/v1/responses/{made['id']}/input_items?order=asc").json()["data"]
    assert listed[0]["content"] == listed[2]["output"] == parts


def _refused(ask: Ask) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/completions", "/api/chat"):
        for status, given in REFUSALS:
            headers = {"content-type": "application/json", **given.get("headers", {})}
            ask("POST", path, status, **{**given, "headers": headers})


def test_every_answer_is_what_the_document_says(asked: Ask, judge: Judge) -> None:
    good = {(method, path) for method, path, status, _ in judge.seen if status == 200}
    ends = "/admin/settings/restart"  # the server of these tests goes on
    declared = {one for one in judge.declared(200) if one[1] != ends}
    assert good == {(method, path) for method, path, _ in declared}
    assert {(method, path, media) for method, path, _, media in judge.seen} >= declared


def test_what_is_declared_is_sent(asked: Ask, judge: Judge) -> None:
    """But for pings and for errors in streams, which nothing here brings about. What a random model
    says differs from time to time: a thought may be empty once."""
    for _ in range(3):
        if judge.unsent() - RARE:
            _written(asked)
    assert sorted(judge.unsent() - RARE) == []


RARE = {
    *("Ping.type", "ErrorEvent.type", "ErrorEvent.error", "ErrorEvent.request_id"),
    *(f"ResponseErrorEvent.{name}" for name in ("type", "code", "message", "param")),
    *("ResponseErrorEvent.sequence_number", "ResponseErrorEvent.error"),
    *(f"ErrorPayload.{name}" for name in ("type", "code", "message", "param")),
    *("ResponseFailure.code", "ResponseFailure.message"),
    *("FetchError.type", "FetchError.error"),
    *("LoadProgress.bytes", "LoadProgress.total"),  # loads of tiny models are too short for it
    "Health.cluster",  # a server of one process has none
    *(f"RankHealth.{name}" for name in ("rank", "host", "status", "problem", "done")),
    *("RankHealth.active_bytes", "RankHealth.peak_bytes"),
    *(
        "PullStatus.digest",
        "PullStatus.total",
        "PullStatus.completed",
    ),  # what is here is not pulled
}


def test_what_a_path_allows_is_told(all_kinds: ServerProcess) -> None:
    for path, methods in (("/v1/responses/x", "DELETE, GET, HEAD"), ("/v1/responses", "POST")):
        response = all_kinds.http.put(all_kinds.url + path)
        assert (response.status_code, response.headers["allow"]) == (405, methods)


def test_a_head_request_gets_the_head_of_a_get(all_kinds: ServerProcess) -> None:
    for path in ("/", "/health", "/v1/models", "/metrics", "/admin/live", "/v1/models/none"):
        url, headers = all_kinds.url + path, {"x-admin-token": ADMIN_TOKEN}
        head = all_kinds.http.head(url, headers=headers)
        assert head.content == b""
        with all_kinds.http.stream("GET", url, headers=headers) as whole:
            assert (head.status_code, head.headers["content-type"]) == (
                whole.status_code,
                whole.headers["content-type"],
            )


def test_the_judge_sees_what_is_wrong(judge: Judge) -> None:
    """A field more, a field less, another type."""
    schema = {"$ref": "#/components/schemas/Version"}
    judge.validate({"version": "1"}, schema)
    for wrong in ({"version": "1", "more": 1}, {}, {"version": 1}):
        with pytest.raises(ValidationError):
            judge.validate(wrong, schema)
