"""GET /progress/{id} tells whoever knows a request's id where it is."""

import asyncio
from typing import Any

import httpx

from omlx_server.api.app import create_app
from omlx_server.api.http.exchange import Exchange
from omlx_server.settings import Settings
from omlx_server.settings.sections import AdminSettings, AuthSettings
from omlx_server.wiring.context import make_context
from tests.api.fixed import fixed_models

FIRST, SECOND, THIRD = "aaaaaaaa", "bbbbbbbb", "cccccccc"


def ask(id: str, key: str = "key-of-a-client") -> httpx.Response:
    """Ask about one of three requests; the first two wait for the same model."""
    auth = AuthSettings.of({"api_keys": ("key-of-a-client",)})
    settings = Settings(auth=auth, admin=AdminSettings.of({"enabled": False}))
    context = make_context(fixed_models(), settings)
    exchanges = [Exchange(id, "POST", model=f"org/{id[0]}") for id in (FIRST, SECOND, THIRD)]
    exchanges[1].model = exchanges[0].model
    for exchange in exchanges:
        context.activity.recent.begins(exchange)

    async def asking() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.get(f"/progress/{id}", headers={"x-api-key": key})

    return asyncio.run(asking())


def test_a_request_is_told_with_how_many_wait_longer_for_its_model() -> None:
    for id, before in ((FIRST, 0), (SECOND, 1), (THIRD, 0)):
        told: Any = ask(id).json()
        assert told["before"] == before
        request = told["request"]
        assert (request["id"], request["waits_for"]) == (id, "its model")


def test_of_an_unknown_request_nothing_is_told_and_to_strangers_nothing_at_all() -> None:
    assert ask("dddddddd").json() == {"request": None, "before": 0}
    assert ask(FIRST, key="wrong").status_code == 401
