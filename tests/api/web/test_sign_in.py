"""Codes that sign a browser in: good once, for minutes, on the server's own machine."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from omlx_server import clock
from omlx_server.api.app import create_app
from omlx_server.api.http.admin_access import AdminAccess
from omlx_server.api.http.sign_in_codes import CODE_SECONDS, SignInCodes
from omlx_server.settings import Settings
from omlx_server.settings.sections import AuthSettings
from omlx_server.wiring.context import make_context
from tests.api.fixed import fixed_models

TOKEN = "token-of-the-owner"
OWNER = {"x-admin-token": TOKEN}
CREDENTIALS: Any = {"key": "", "token": TOKEN}


class Server:
    def __init__(self, *keys: str) -> None:
        settings = Settings(auth=AuthSettings.of({"api_keys": keys}))
        access = AdminAccess(needs_token=True, find_token=lambda: TOKEN)
        self._app = create_app(replace(make_context(fixed_models(), settings), admin=access))

    def post(
        self, path: str, body: object, headers: dict[str, str], client: str = "127.0.0.1"
    ) -> httpx.Response:
        async def posting() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(client, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.post(path, json=body, headers=headers)

        return asyncio.run(posting())

    def issue(self, headers: dict[str, str], **more: str) -> httpx.Response:
        return self.post("/admin/sign-in-code", {}, headers, **more)

    def redeem(self, code: str, client: str = "127.0.0.1", **headers: str) -> httpx.Response:
        return self.post("/sign-in", {"code": code}, headers, client)


def test_a_code_gives_its_callers_own_credentials_once() -> None:
    server = Server("key-of-a-client")
    for headers, credentials in (
        (OWNER, CREDENTIALS),
        (
            OWNER | {"authorization": "Bearer key-of-a-client"},
            CREDENTIALS | {"key": "key-of-a-client"},
        ),
    ):
        issued = server.issue(headers)
        assert issued.json()["seconds"] == CODE_SECONDS
        code = issued.json()["code"]
        other = ("y" if code[0] == "x" else "x") + code[1:]
        assert server.redeem(other).status_code == 403
        answer = server.redeem(code)
        assert answer.json() == credentials
        assert answer.headers["cache-control"] == "no-store"
        again = server.redeem(code)
        assert (again.status_code, again.json()["error"]["code"]) == (403, "sign_in_code_not_valid")


def test_only_the_owner_gets_a_code() -> None:
    key = {"x-api-key": "key-of-a-client"}
    server = Server("key-of-a-client")
    for headers in (key, {}, {"x-admin-token": "wrong"}, key | {"x-admin-token": "wrong"}):
        assert server.issue(headers).status_code == 401
    assert Server().issue({}).status_code == 401


def test_other_machines_and_what_comes_through_a_proxy_are_refused() -> None:
    server = Server()
    code = server.issue(OWNER).json()["code"]
    assert server.issue(OWNER, client="192.168.1.7").status_code == 403
    assert server.redeem(code, client="192.168.1.7").status_code == 403
    proxy = {"x-forwarded-for": "192.168.1.7"}
    assert server.redeem(code, **proxy).status_code == 403
    assert server.redeem(code, origin="http://evil.example").status_code == 403
    assert server.redeem(code).status_code == 200


def test_a_code_expires_and_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(clock, "now", lambda: now)
    codes = SignInCodes()
    old, young = codes.issue(CREDENTIALS), codes.issue(CREDENTIALS)
    now += CODE_SECONDS - 1
    assert codes.redeem(old) == CREDENTIALS
    now += 1
    assert codes.redeem(young) is None
    first, *later = [codes.issue(CREDENTIALS) for _ in range(33)]
    assert codes.redeem(first) is None
    assert all(codes.redeem(code) for code in later)
