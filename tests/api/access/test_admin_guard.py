"""Who may give orders to a server: the guard of admin routes, on an app without a model."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

import httpx
import pytest
from fastapi import APIRouter, Depends

from omlx_server.api import app as whole
from omlx_server.api.admin.guard import require_admin
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.served import ServedModels
from omlx_server.errors import ConfigError
from omlx_server.settings import CacheSettings, Settings
from omlx_server.settings.admin_token import admin_token, read_admin_token, token_file
from omlx_server.settings.sections import AdminSettings, AuthSettings
from omlx_server.wiring.context import make_context

KEY = "key-of-a-client"
KEYED = AuthSettings.of({"api_keys": (KEY,)})
ORDER = "/v1/test/order"
OTHER = "/version"
NO_MODELS = cast(ServedModels, object())  # neither the guard nor these routes ask one


def parts() -> tuple[ModuleType]:
    """A module with one route, as those of api/admin are."""
    module = ModuleType("order")
    router = APIRouter(dependencies=[Depends(require_admin)])

    @router.post(ORDER)
    async def order() -> JsonResponse:
        return JsonResponse({"done": True})

    module.router = router  # type: ignore[attr-defined]
    return (module,)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OMLX_ADMIN_TOKEN", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(whole, "_ADMIN_MODULES", parts())
    return tmp_path


def ask(settings: Settings, *requests: tuple[str, dict[str, str]]) -> Sequence[httpx.Response]:
    """One after another, of one app."""
    app = whole.create_app(make_context(NO_MODELS, settings))

    async def scene() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return [
                await http.request("GET" if path == OTHER else "POST", path, headers=headers)
                for path, headers in requests
            ]

    return asyncio.run(scene())


def order(settings: Settings, **headers: str) -> httpx.Response:
    return ask(settings, (ORDER, {k.replace("_", "-"): v for k, v in headers.items()}))[0]


def code(response: httpx.Response) -> tuple[int, str | None]:
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize("settings", [Settings(), Settings(auth=KEYED)])
def test_the_token_opens_in_both_headers(settings: Settings) -> None:
    token = admin_token()
    assert order(settings, x_admin_token=token).json() == {"done": True}
    assert order(settings, authorization=f"Bearer {token}").status_code == 200
    both = order(settings, authorization=f"Bearer {KEY}", x_admin_token=token)
    assert both.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x_admin_token": "another"},
        {"x_admin_token": ""},
        {"authorization": "Bearer another"},
        {"authorization": "Bearer "},
        {"authorization": "Basic {token}"},
        {"x_api_key": "{token}"},
        {"x_admin_token": "{token}x"},
    ],
)
def test_nothing_else_does(headers: dict[str, str]) -> None:
    token = admin_token()
    sent = {name: value.format(token=token) for name, value in headers.items()}
    refused = order(Settings(), **sent)
    assert code(refused) == (401, "admin_token_needed")
    assert "x-admin-token" in refused.json()["error"]["message"]
    assert token not in refused.text


def test_a_clients_key_is_no_token() -> None:
    assert code(order(Settings(auth=KEYED), x_api_key=KEY)) == (401, "admin_token_needed")
    assert code(order(Settings(auth=KEYED))) == (401, "invalid_api_key")


def test_the_owner_needs_no_key_of_a_client_elsewhere() -> None:
    token = admin_token()
    headers: list[dict[str, str]] = [{"x-admin-token": token}, {"x-admin-token": "another"}, {}]
    answers = ask(Settings(auth=KEYED), *((OTHER, each) for each in headers))
    assert [answer.status_code for answer in answers] == [200, 401, 401]


def test_by_key_whoever_may_ask_may_order() -> None:
    by_key = AuthSettings.of({"admin": "key"})
    assert order(Settings(auth=by_key)).status_code == 200
    assert not token_file().exists()
    keyed = Settings(auth=AuthSettings.of({"admin": "key", "api_keys": (KEY,)}))
    assert order(keyed, x_api_key=KEY).status_code == 200
    assert code(order(keyed)) == (401, "invalid_api_key")


def test_switched_off_the_routes_are_not_there() -> None:
    off = Settings(admin=AdminSettings(enabled=False), auth=KEYED)
    token = admin_token()
    assert code(order(off, x_api_key=KEY, x_admin_token=token)) == (404, "not_found")
    assert code(order(off, x_admin_token=token)) == (401, "invalid_api_key")


def test_a_server_that_cannot_keep_a_token_says_why(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / ".config").write_text("a file in its place")
    with caplog.at_level(logging.WARNING):
        refused = order(Settings(), x_admin_token="another")
    assert code(refused) == (403, "admin_unavailable")
    assert "admin-token can't be used: " in refused.json()["error"]["message"]
    assert len(caplog.records) == 1


def test_a_server_that_writes_nothing_takes_the_token_that_comes_later() -> None:
    settings = Settings(cache=CacheSettings(hot_cache_only=True))
    assert code(order(settings)) == (403, "admin_unavailable")
    assert not token_file().parent.exists()
    app = whole.create_app(make_context(NO_MODELS, settings))
    token = admin_token()

    async def scene() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.post(ORDER, headers={"x-admin-token": token})).status_code

    assert asyncio.run(scene()) == 200


def test_a_wrong_variable_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_ADMIN_TOKEN", "short")
    with pytest.raises(ConfigError, match="holds no token"):
        make_context(NO_MODELS, Settings())


def test_the_server_makes_its_token_at_the_start() -> None:
    make_context(NO_MODELS, Settings())
    assert read_admin_token()
