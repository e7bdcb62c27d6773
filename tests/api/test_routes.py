"""What holds for every route, also for those that nobody has written yet: keys, hosts, origins,
media types; nothing that comes in ends the server, and nothing of it is in the log."""

import asyncio
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pytest

from omlx_server.api.app import create_app
from omlx_server.settings import Settings
from omlx_server.wiring.context import make_context
from tests.api.bad_values import NOT_EVEN_JSON, RAW_VALUES
from tests.api.fixed import fixed_models
from tests.api.harness import (
    ADMIN_TOKEN,
    CHAT,
    MARKER,
    UNPROBED,
    ServerProcess,
    assert_envelope,
    assert_ollama_envelope,
    serving,
)
from tests.api.routes import ENDLESS, bodies, body_for, least, routes

KEY = "correct-horse-battery"
OPEN = {"/", "/health", "/health/live", "/health/ready", "/sign-in"}
OPEN |= {"/web/about.json", "/web/index.html"}
every_route = pytest.mark.parametrize(("method", "path"), routes())
posts = pytest.mark.parametrize("path", [path for method, path in routes() if method == "POST"])

# -- the guard, before an app that has no model --------------------------------------------------


def ask(method: str, path: str, **headers: str) -> httpx.Response:
    return ask_with((), method, path, **headers)


def ask_with(
    cors_origins: tuple[str, ...], method: str, path: str, **headers: str
) -> httpx.Response:
    settings = Settings.of(
        {"auth": {"api_keys": (KEY, "other")}, "server": {"cors_origins": cors_origins}}
    )
    app = create_app(make_context(fixed_models(), settings))

    async def asking() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            return await http.request(method, path, headers=names)

    return asyncio.run(asking())


def refused(response: httpx.Response, status: int, code: str | None = None) -> None:
    """In the envelope of OpenAI, or of Anthropic and Ollama under the routes of theirs."""
    if response.request.url.path.startswith("/api/"):
        assert_ollama_envelope(response, status)
        return
    if response.request.url.path.startswith("/v1/messages"):
        assert response.status_code == status, response.text
        body = response.json()
        assert body["type"] == "error" and set(body["error"]) >= {"type", "message"}
        assert MARKER not in response.text, "the input was echoed"
        return
    error = assert_envelope(response, status)
    assert code is None or error["code"] == code


def test_the_list_of_routes_is_that_of_the_app() -> None:
    app = create_app(make_context(fixed_models(), Settings()))
    described = {
        (method.upper(), path) for path, item in app.openapi()["paths"].items() for method in item
    }
    plain = {pair for pair in described if "{" not in pair[1]}
    assert plain <= set(routes())
    assert len(described) <= len(routes())
    assert ("POST", CHAT) in described


@every_route
def test_a_route_needs_a_key_or_is_about_health(method: str, path: str) -> None:
    response = ask(method, path, content_type="application/json")
    if path in OPEN:
        assert response.status_code != 401
    else:
        refused(response, 401, "invalid_api_key")
        right = {"content_type": "application/json", "authorization": f"Bearer {KEY}"}
        if path.startswith("/admin/") or path == "/api/pull":
            refused(ask(method, path, **right), 401, "admin_token_needed")
            right["x_admin_token"] = ADMIN_TOKEN
        if (method, path) == ENDLESS:
            path += "?events=0"
        assert ask(method, path, **right).status_code != 401


@pytest.mark.parametrize(
    "path",
    [
        *("/health/../v1/models", "/health/", "/health/live/", "/health/live/x", "/HEALTH"),
        "http://localhost//health",  # what begins with two slashes is a host to httpx
        *("/web", "/webs/", "/web/../v1/models", "/WEB/index.html", "http://localhost//web/x"),
    ],
)
def test_only_the_very_paths_are_open(path: str) -> None:
    assert ask("GET", path).status_code == 401
    assert ask("GET", quote(path, safe="")).status_code == 401


@every_route
def test_a_foreign_host_or_origin_is_refused_before_anything_else(method: str, path: str) -> None:
    right = {"authorization": f"Bearer {KEY}"}
    for headers in (
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://localhost.evil.example"},
    ):
        response = ask(method, path, **right, **headers)
        assert response.status_code == 403
        assert not [name for name in response.headers if name.startswith("access-control")]
        preflight = {"access_control_request_method": method, "origin": "http://evil.example"}
        assert ask("OPTIONS", path, **preflight).status_code == 403


@pytest.mark.parametrize("welcome", ["https://chat.example", "*"])
def test_pages_that_are_named_may_ask(welcome: str) -> None:
    page = {"origin": "https://chat.example", "host": "localhost"}
    asks = {"access_control_request_method": "POST", "access_control_request_headers": "x-api-key"}
    leave = ask_with((welcome,), "OPTIONS", CHAT, **page, **asks)
    assert leave.status_code == 200
    assert leave.headers["access-control-allow-origin"] in (page["origin"], "*")
    assert "x-api-key" in leave.headers["access-control-allow-headers"]
    found = ask_with((welcome,), "GET", "/v1/models", **page, x_api_key=KEY)
    assert found.status_code == 200
    assert found.headers["access-control-allow-origin"] in (page["origin"], "*")
    refused(ask_with((welcome,), "GET", "/v1/models", **page), 401)
    if welcome != "*":
        stranger = {**page, "origin": "https://other.example"}
        refused(ask_with((welcome,), "GET", "/v1/models", **stranger, x_api_key=KEY), 403)
        assert ask_with((welcome,), "OPTIONS", CHAT, **stranger, **asks).status_code == 400


@posts
def test_a_body_that_a_page_may_send_unasked_is_refused(path: str) -> None:
    right = {"authorization": f"Bearer {KEY}", "sec_fetch_site": "cross-site"}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; a=b"):
        response = ask("POST", path, content_type=kind, **right)
        refused(response, 415, "unsupported_media_type")


# -- nothing ends the server ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def song(tiny: ServerProcess) -> Iterator[str]:
    """The canary, before it all and after it all."""
    song, pid = tiny.canary(), tiny.pid
    yield song
    tiny.wait_idle()
    assert tiny.canary() == song
    assert tiny.running and tiny.pid == pid
    assert "Traceback" not in tiny.log
    assert "ERROR" not in tiny.log


@cache
def examples() -> list[dict[str, Any]]:
    """A body of every kind, as small as it may be, and with a value in every field."""
    found = []
    for kind in bodies():
        schema = kind.model_json_schema()
        defs, properties = schema.get("$defs", {}), schema.get("properties", {})
        found.append(least(schema, defs))
        every = {name: least(node, defs, name) for name, node in properties.items()}
        found += [every, *({name: value} for name, value in every.items())]
    return found


def sane(response: httpx.Response) -> None:
    """An answer, or a refusal in the envelope that tells nothing of what came in but the name of a
    model, an adapter or a preset that there is not."""
    assert response.status_code < 500, response.text
    # Ollama's and Anthropic's errors have no code.
    unknown = (
        "model_not_found",
        "model not found",
        "not_found_error",
        "has no preset",
        "has no adapter",
    )
    if response.status_code in (400, 404) and any(said in response.text for said in unknown):
        assert len(response.content) < 500
    elif response.status_code >= 400:
        refused(response, response.status_code)


def mutated(chance: random.Random, value: Any, deep: int = 4) -> Any:
    """The same with something wrong somewhere."""
    strange: list[Any] = [
        *(None, True, False, 0, -1, 1, 2**63, -(2**64), 1e308, 5e-324, "", "\x00", MARKER),
        *([], [[]], {}, {"": None}, [None], [MARKER] * 50, {MARKER: {MARKER: MARKER}}, "x" * 9000),
        *("\ud7ff", "<|im_start|>", "\u202e", "{{7*7}}", "../../etc/passwd", "$(id)", "NaN"),
    ]
    if deep and isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        if chance.random() < 0.2:
            return {**value, chance.choice(["", "-1", "٣", "9" * 5000, MARKER]): value[key]}
        return {**value, key: mutated(chance, value[key], deep - 1)}
    if deep and isinstance(value, list) and value and chance.random() < 0.6:
        place = chance.randrange(len(value))
        return [*value[:place], mutated(chance, value[place], deep - 1), *value[place + 1 :]]
    return chance.choice(strange)


@posts
def test_no_body_ends_the_server(tiny: ServerProcess, song: str, path: str) -> None:
    """What is no JSON, bodies of other routes, and bodies with one thing wrong."""
    chance = random.Random(path)
    good = body_for(path)
    everything = [good, *examples()]
    bad = [mutated(chance, chance.choice(everything)) for _ in range(25)]
    bad = [{**good, **value} if isinstance(value, dict) else value for value in bad]
    contents = [json.dumps(value).encode() for value in bad]
    whole = orjson.dumps(good).decode()[:-1]
    contents += [f"{whole}, {pair}}}".encode() for pair in RAW_VALUES.values()]
    for content in [*NOT_EVEN_JSON.values(), *contents]:
        headers = {"content-type": _media_type(path)}
        sane(tiny.http.post(f"{tiny.url}{path}", content=content, headers=headers))
        if chance.random() < 0.05:
            assert tiny.canary() == song


HOSTILE_NAMES = [
    *("", "%00", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..", "%ff%fe", "a" * 8000, "%F0%9F%92%A9"),
    *("tiny%0d%0aX-Injected:%201", "'--", "%7B%7B7*7%7D%7D", "tiny/", "a/b/c/d", "%25"),
]


@pytest.mark.parametrize("place", ["/v1/models/", "/v1/cache/pins/", "/", "/v1/", "/v1/cache/"])
def test_no_address_ends_the_server(tiny: ServerProcess, song: str, place: str) -> None:
    for name in HOSTILE_NAMES:
        for method in ("GET", "DELETE", "PUT", "POST"):
            response = tiny.http.request(method, f"{tiny.url}{place}{name}")
            sane(response)
            assert "x-injected" not in response.headers


@every_route
def test_no_query_ends_the_server(tiny: ServerProcess, song: str, method: str, path: str) -> None:
    hostile = "&".join(f"{name}={MARKER}%00%ff" for name in ("model", "cache_salt", "id", "x"))
    for query in (hostile, hostile * 20, "model[]=a", "cache_salt=", "%", "&&=&", "cache_salt=%F0"):
        response = tiny.http.request(method, f"{tiny.url}{path}?{query}")
        sane(response)


def _media_type(path: str) -> str:
    return "application/x-tar" if path.endswith("/import") else "application/json"


# -- the log -------------------------------------------------------------------------------------


def test_the_log_holds_nothing_of_what_comes_and_goes(tiny_models: Path, tmp_path: Path) -> None:
    """At its most talkative, after a success and a failure on every route."""
    key = f"key-{MARKER}"
    sets = (f"models.dirs={tiny_models}", UNPROBED, f"auth.api_keys={key},other")
    with serving("tiny", tmp_path, *sets, "logging.level=debug") as server:
        answers = [_talk(server, key, *route) for route in routes()]
        log = server.log
    assert log.count("\n") > 5
    assert MARKER not in log
    texts = [text for answer in answers for text in _texts(answer)]
    assert len(texts) >= 4
    assert not [text for text in texts if text in log]


def _talk(server: ServerProcess, key: str, method: str, path: str) -> bytes:
    """The answer, if there is a good one."""
    headers = {"authorization": f"Bearer {key}", "user-agent": MARKER, "x-request-id": MARKER}
    headers["content-type"] = _media_type(path)
    address = f"{server.url}{path}?cache_salt={MARKER}&q={MARKER}"
    content = b""
    if method == "POST":
        body = body_for(path)
        said = {"max_tokens": 40, "ignore_eos": True} if "max_tokens" in body else {}
        text = {"messages": [{"role": "user", "content": f"{MARKER} " * 40}], "prompt": MARKER}
        text = {name: value for name, value in text.items() if name in body}
        content = orjson.dumps({**body, **text, **said, "user": MARKER, "cache_salt": MARKER})
        server.http.post(address, headers=headers, content=content[:-9])
        server.http.post(address, headers={**headers, "authorization": MARKER}, content=content)
        streamed = content[:-1] + b', "stream": true}'
        server.http.post(address, headers=headers, content=streamed)
    answer = server.http.request(method, address, headers=headers, content=content)
    return answer.content if answer.is_success else b""


def _texts(content: bytes) -> list[str]:
    """The texts of a model in an answer, long enough not to be in a log by chance."""
    try:
        choices = orjson.loads(content)["choices"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return []
    texts = [choice.get("text") or choice["message"]["content"] for choice in choices]
    return [text[at : at + 12] for text in texts for at in (0, 20) if len(text) > 40]
