"""GET /progress/{id} tells the client that sent a request where it is."""

import asyncio
from typing import Any

import httpx

from omlx_server.api.activity.history import RecentExchanges
from omlx_server.api.app import create_app
from omlx_server.api.http.exchange import Exchange
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served_model import CHAT
from omlx_server.engine.pool.entry import ModelRequest, Phase
from omlx_server.settings import Settings
from omlx_server.settings.sections import AdminSettings, AuthSettings
from omlx_server.wiring.context import make_context
from tests.api.fixed import Fixed, fixed_models

FIRST, SECOND, THIRD = "aaaaaaaa", "bbbbbbbb", "cccccccc"
KEYS = ("key-of-a-client", "key-of-another")


class Unending(RecentExchanges):
    """Requests that stay under way."""

    def ends(self, exchange: Exchange) -> None:
        return


def ask(id: str, key: str = KEYS[0], *, also_sent_by: str = "") -> httpx.Response:
    """Ask about one of three requests of the first key; the first two wait for the same model. A
    request with the id of the first is `also_sent_by` another key, before it."""
    auth = AuthSettings.of({"api_keys": KEYS})
    settings = Settings(auth=auth, admin=AdminSettings.of({"enabled": False}))
    context = make_context(fixed_models(), settings)
    context.activity.recent = Unending()
    sent = [(FIRST, "org/a", KEYS[0]), (SECOND, "org/a", KEYS[0]), (THIRD, "org/c", KEYS[0])]
    if also_sent_by:
        sent.insert(0, (FIRST, "org/theirs", also_sent_by))

    async def asking() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for sent_id, model, sender in sent:
                await http.post("/x", headers={"x-request-id": sent_id, "x-api-key": sender})
                context.activity.recent.under_way()[-1].model = model
            return await http.get(f"/progress/{id}", headers={"x-api-key": key})

    return asyncio.run(asking())


def test_a_request_is_told_with_how_many_wait_longer_for_its_model() -> None:
    for id, before in ((FIRST, 0), (SECOND, 1), (THIRD, 0)):
        told: Any = ask(id).json()
        assert told["before"] == before
        request = told["request"]
        assert (request["id"], request["waits_for"]) == (id, "its model")


def test_the_load_that_a_request_waits_for_is_told() -> None:
    """Any other request has none."""
    context = make_context(fixed_models(), Settings())
    listing = ModelListing(CHAT, ("org/a",), ModelRequest("0", 8), 0)
    models = context.models
    models.catalogue = Fixed((listing,))
    models.pool.pin(listing.load_request, True)
    entry = models.pool.entry("0")
    assert entry is not None
    exchange = Exchange(FIRST, "POST", started=0.0, model="org/a")
    context.activity.recent.begins(exchange)

    async def told() -> Any:
        return (await context.activity.progress(FIRST, exchange.client))["request"]

    assert asyncio.run(told())["load"] is None  # it waits for others
    entry.phase = Phase.LOADING
    entry.note_read(3)
    assert asyncio.run(told())["load"] == {"bytes": 3, "total": 8}


def test_of_an_unknown_request_nothing_is_told_and_to_strangers_nothing_at_all() -> None:
    nothing = {"request": None, "before": 0}
    assert ask("dddddddd").json() == nothing
    assert ask(FIRST, key="wrong").status_code == 401
    assert ask(FIRST, KEYS[1]).json() == nothing


def test_of_two_requests_with_one_id_each_key_is_told_of_its_own() -> None:
    for key, model in zip(KEYS, ("org/a", "org/theirs"), strict=True):
        assert ask(FIRST, key, also_sent_by=KEYS[1]).json()["request"]["model"] == model
