"""What Ollama's routes share with all others: the answers, the cache, keys, the log, and clients
that leave."""

import asyncio
from collections.abc import AsyncGenerator

import httpx
import orjson
import pytest

from omlx_server.api.admin.fetch import FetchStep
from omlx_server.api.app import create_app
from omlx_server.api.models.listing import ModelFetched
from omlx_server.api.ollama.models import OLLAMA_VERSION
from omlx_server.api.ollama.pull import progress_lines
from omlx_server.settings import Settings
from omlx_server.wiring.context import make_context
from tests.api.fixed import fixed_models
from tests.api.harness import (
    ADMIN_TOKEN,
    Json,
    ServerProcess,
    assert_envelope,
    assert_ollama_envelope,
    busy,
    samples,
    text_of,
    wait_for,
    wait_idle_soon,
)
from tests.api.ollama.asking import GREEDY, TALK, lines, post, whole

LONG: list[Json] = [{"role": "user", "content": f"A text of some length. {'and ' * 200}"}]


def test_a_body_may_be_called_a_form_as_curl_does_unless_a_page_sends_it(
    own: ServerProcess,
) -> None:
    """Ollama's examples of curl name no media type."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    url, body = f"{own.url}/api/show", orjson.dumps({"model": "org/tiny"})
    assert own.http.post(url, content=body, headers=form).status_code == 200
    for page in ({"origin": own.url}, {"sec-fetch-site": "cross-site"}):
        refused = own.http.post(url, content=body, headers={**form, **page})
        assert_ollama_envelope(refused, 415)
    assert_envelope(own.http.post(f"{own.url}/v1/completions", content=body, headers=form), 415)


def hits(server: ServerProcess) -> float:
    found = samples(server.http.get(f"{server.url}/metrics").text)
    return sum(value for name, value in found.items() if name.startswith("vllm:prefix_cache_hits"))


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.9, "seed": 5}])
def test_text_equals_that_of_chat_completions_cold_and_warm(
    own: ServerProcess, options: Json
) -> None:
    salted = {"messages": LONG, "cache_salt": f"equal {options}"}
    asked = {**GREEDY, **options}
    cold = whole(own, "chat", **salted, options=asked)
    before = hits(own)
    warm = post(own, "chat", **salted, options=asked, stream=False)
    assert int(warm.headers["x-omlx-cached-tokens"]) > 100
    assert hits(own) - before > 100
    ours = own.post({"model": "org/tiny", **LONG_OURS, **options, "cache_salt": "another"})
    texts = [cold["message"]["content"], warm.json()["message"]["content"]]
    assert texts == [text_of(ours.json())] * 2
    assert cold["prompt_eval_count"] == ours.json()["usage"]["prompt_tokens"]
    told = lines(post(own, "chat", **salted, options=asked))
    assert "".join(line["message"]["content"] for line in told) == texts[0]


LONG_OURS: Json = {"messages": LONG, "max_tokens": 12, "ignore_eos": True}


def test_options_mean_what_they_mean_elsewhere(own: ServerProcess) -> None:
    names = {"repeat_penalty": "repetition_penalty"}
    for options in (
        {"top_k": 5, "seed": 1, "temperature": 1.5},
        {"top_p": 0.5, "min_p": 0.1, "seed": 2, "temperature": 1.5},
        {"repeat_penalty": 1.9},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"stop": ["a", "e"]},
    ):
        theirs = whole(own, "chat", messages=TALK, options={**GREEDY, **options})
        given = {names.get(name, name): value for name, value in options.items()}
        base = {"messages": TALK, "max_tokens": 12, "ignore_eos": True, "temperature": 0}
        ours = own.post({"model": "org/tiny", **base, **given}).json()
        assert theirs["message"]["content"] == text_of(ours), options
    plain = whole(own, "chat", messages=TALK, options=GREEDY)
    off = {**GREEDY, "repeat_penalty": 1.9, "repeat_last_n": 0, "num_ctx": 8, "mirostat": "x"}
    assert whole(own, "chat", messages=TALK, options=off)["message"] == plain["message"]


def test_presets_and_adapters_mean_what_they_mean_elsewhere(own: ServerProcess) -> None:
    told = whole(own, "chat", messages=TALK, preset="brief", options={"ignore_eos": True})
    assert told["eval_count"] == 3
    for wrong, status in (({"preset": "long"}, 400), ({"adapter": "nobody"}, 404)):
        assert_ollama_envelope(post(own, "chat", messages=TALK, **wrong), status)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": TALK, "max_tokens": 1}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 16}),
        ("/v1/messages", {"messages": TALK, "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": TALK}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/v1/embeddings", {"model": "minilm:latest", "input": "Hi"}),
        ("/api/embed", {"model": "minilm:latest", "input": "Hi"}),
        ("/api/show", {"model": "small:latest"}),
        ("/admin/models/load", {"model": "org/tiny:latest"}),
    ],
)
def test_a_name_with_ollamas_tag_is_the_name_in_every_api(
    own: ServerProcess, path: str, fields: Json
) -> None:
    body, owner = {"model": "small:latest", **fields}, {"x-admin-token": ADMIN_TOKEN}
    told = own.http.post(f"{own.url}{path}", json=body, headers=owner)
    assert told.status_code == 200, told.text


def test_a_model_is_described_under_its_name_with_ollamas_tag(own: ServerProcess) -> None:
    told = own.http.get(f"{own.url}/v1/models/tiny:latest").json()
    assert (told["id"], told["root"]) == ("tiny:latest", "org/tiny")
    for name, status in (("nobody:latest", 404), ("tiny:lates", 404)):
        assert_envelope(own.http.get(f"{own.url}/v1/models/{name}"), status)


def test_the_beginning_of_an_answer_is_continued(own: ServerProcess) -> None:
    turns = [*TALK, {"role": "assistant", "content": "Once upon"}]
    told = whole(own, "chat", messages=turns, options=GREEDY)
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    base = {"max_tokens": 12, "ignore_eos": True, "temperature": 0, **goes_on}
    ours = own.post({"model": "org/tiny", "messages": turns, **base}).json()
    assert told["message"]["content"] == text_of(ours)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("template", "{{ .Prompt }}"), ("context", [1, 2]), ("suffix", "}"), ("system", "x")),
        *(("format", "xml"), ("format", [1]), ("think", "very"), ("keep_alive", True)),
    ],
)
def test_what_is_not_supported_is_refused(own: ServerProcess, field: str, value: object) -> None:
    """This model has no tokens for a suffix; a system prompt has no place in a raw prompt."""
    raw = {"raw": True} if field == "system" else {}
    told = post(own, "generate", prompt="Hi", **raw, **{field: value})
    assert field in assert_ollama_envelope(told, 400)


@pytest.mark.parametrize("path", ["create", "copy", "push", "blobs/sha256:00", "nothing"])
def test_routes_that_are_not_there_say_so_in_ollamas_words(own: ServerProcess, path: str) -> None:
    assert_ollama_envelope(post(own, path), 404)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_row(own: ServerProcess, stream: bool) -> None:
    body = {"model": "org/tiny", "messages": TALK, "stream": stream}
    body["options"] = {"num_predict": 4000, "ignore_eos": True}
    with httpx.Client(trust_env=False, timeout=60 if stream else 0.3) as http:
        if stream:
            with http.stream("POST", f"{own.url}/api/chat", json=body) as answer:
                told = answer.iter_lines()  # the connection is closed with it
                next(told)
                assert busy(own.load()) == 1
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.post(f"{own.url}/api/chat", json=body)
    wait_idle_soon(own)


def test_a_request_is_a_line_in_the_log_and_a_count(own: ServerProcess) -> None:
    whole(own, "chat", messages=TALK, options=GREEDY)
    lines = [line for line in own.log.splitlines() if '"route":"/api/chat"' in line]
    assert any('"model":"org/tiny"' in line and '"completion_tokens":12' in line for line in lines)
    found = samples(own.http.get(f"{own.url}/metrics").text)
    key = 'omlx_http_requests_total{method="POST",route="/api/chat",status="200"}'
    assert found[key] > 0


def test_a_pull_that_asked_no_hub_says_so() -> None:
    async def steps() -> AsyncGenerator[FetchStep, None]:
        here = ModelFetched(
            type="done", model="a", names=["a"], path="/a", fetched_bytes=0, checked=False
        )
        yield here

    async def told() -> list[Json]:
        return [orjson.loads(line) async for line in progress_lines(steps(), "a")]

    assert [line["status"] for line in asyncio.run(told())] == [
        "not checked: no network",
        "success",
    ]


def test_a_page_of_another_site_pulls_nothing(own: ServerProcess) -> None:
    url = f"{own.url}/api/pull"
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
        told = own.http.post(url, json={"model": "far/away"}, headers=headers)
        assert_ollama_envelope(told, 403)
    told = own.http.post(
        url, content=b'{"model":"far/away"}', headers={"content-type": "text/plain"}
    )
    assert_ollama_envelope(told, 415)


def test_the_version_is_one_that_clients_take(own: ServerProcess) -> None:
    told = own.http.get(f"{own.url}/api/version").json()
    assert told == {"version": OLLAMA_VERSION}


def test_no_client_outlasts_or_ends_what_the_owner_has_said(own: ServerProcess) -> None:
    """A pinned model stays, and none stays longer than its own time."""
    told = whole(own, "generate", keep_alive=0)
    assert told["done_reason"] == "unload"
    whole(own, "chat", model="org/thinker", messages=TALK, options=GREEDY, keep_alive=-1)
    there = {one["name"]: one["expires_at"] for one in running(own)}
    assert there["org/tiny"] > "2200" > there["org/thinker"]
    whole(own, "generate", model="org/thinker", keep_alive=0)
    wait_for(lambda: "org/thinker" not in {one["name"] for one in running(own)})
    assert "org/tiny" in {one["name"] for one in running(own)}


def test_one_setting_leaves_it_out() -> None:
    for given in ({"ollama": {"enabled": False}}, {"admin": {"enabled": False}}):
        settings = Settings.of(given)
        paths = create_app(make_context(fixed_models(), settings)).openapi()["paths"]
        left = {path for path in paths if path.startswith("/api/")}
        assert ("/api/chat" in left) == settings.ollama.enabled
        assert "/api/pull" not in left


def running(server: ServerProcess) -> list[Json]:
    found: list[Json] = server.http.get(f"{server.url}/api/ps").json()["models"]
    return found


def test_errors_before_a_route_is_known_are_openais(own: ServerProcess) -> None:
    told = own.http.get(f"{own.url}/apis/tags")
    assert_envelope(told, 404)
