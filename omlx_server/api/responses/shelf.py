"""The stored responses of one client, and the conversations that go on from them.

One API key can't find what another one has stored: the name in the store is an HMAC of the response
id with the key.

A stored file may be damaged, or written by somebody else. So it is validated against the types of
this API's answers, and the code that uses it never meets a value of a wrong type.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from omlx_server.api.access.guard import key_of
from omlx_server.api.access.tenant import client_of
from omlx_server.api.context import context_of
from omlx_server.api.response_store.store import Damaged, Store
from omlx_server.api.responses.answers import InputItem, Response
from omlx_server.api.responses.items.ids import ItemIds, is_response_id, response_of
from omlx_server.api.responses.items.items import stored_form
from omlx_server.api.responses.items.seals import Seals
from omlx_server.api.responses.schema import PromptFields, ReferenceItem
from omlx_server.errors import ItemNotFound, PreviousResponseNotFound

_log = logging.getLogger(__name__)


class Stored(TypedDict):
    """A stored response. `input` is the conversation before its output, without the instructions:
    inputs and outputs of the responses from which it goes on, then its own input."""

    response: Response
    input: list[InputItem]


_STORED = TypeAdapter(Stored)
_ADDED = {"presence_penalty": 0.0, "frequency_penalty": 0.0}


class Shelf:
    """The stored responses of one client, who has the API key `key`. Its async methods use the
    store in worker threads. `on_damage` is called, in such a thread, with the reason why a stored
    response could not be used. `seals` seals with the same key. `owner` is in whose share of the
    store its responses count."""

    def __init__(
        self, store: Store, key: str, on_damage: Callable[[str], None], owner: bytes = b""
    ) -> None:
        self.keeps = store.keeps
        self._store = store
        self._key = key.encode()
        self._owner = owner
        self.seals = Seals(self._key)
        self._on_damage = on_damage

    async def put(self, stored: Stored) -> None:
        await asyncio.to_thread(self._put, stored)

    async def get(self, id: str) -> Stored | None:
        """The stored response of this id; None where there is none, or it can't be used."""
        if not is_response_id(id):
            return None
        return await asyncio.to_thread(self._get, id)

    async def delete(self, id: str) -> bool:
        return is_response_id(id) and await asyncio.to_thread(self._store.delete, self._name(id))

    async def item(self, id: str) -> InputItem:
        """The item of this id, from any stored response of the client. Raises ItemNotFound."""
        owner = response_of(id)
        stored = await self.get(owner) if owner else None
        for item in _conversation_of(stored) if stored else ():
            if item["id"] == id:
                return item
        raise ItemNotFound(
            "an item is not found; what belongs to responses with store false is not kept",
            param="input",
        )

    async def conversation(self, asked: PromptFields, ids: ItemIds) -> list[InputItem]:
        """All items of the conversation up to the answer: those of the response from which `asked`
        goes on, then its own.

        Raises:
            PreviousResponseNotFound, ItemNotFound: a response or an item is not stored.
            BadRequest: an item holds no text, or a compaction is damaged.
        """
        before: list[InputItem] = []
        if asked.previous_response_id is not None:
            stored = await self.get(asked.previous_response_id)
            if stored is None:
                raise PreviousResponseNotFound(
                    "the previous response is not found: it was not stored, was deleted, or had to "
                    "go for newer ones",
                    param="previous_response_id",
                )
            before = _conversation_of(stored)
        given = asked.input if isinstance(asked.input, list) else []
        wanted = {item.id for item in given if isinstance(item, ReferenceItem)}
        named = {id: await self.item(id) for id in sorted(wanted)}
        own = await asyncio.to_thread(stored_form, asked.input, ids, named.__getitem__)
        items = before + own
        for item in items:
            if item["type"] == "compaction":
                self.seals.check(item["encrypted_content"], "input")
        return items

    def _put(self, stored: Stored) -> None:
        self._store.put(self._name(stored["response"]["id"]), orjson.dumps(stored), self._owner)

    def _get(self, id: str) -> Stored | None:
        try:
            data = self._store.get(self._name(id), self._owner)
            return None if data is None else _of_bytes(data, id)
        except Damaged as error:
            _log.warning("%s", error)
            self._on_damage(error.reason)
            return None

    def _name(self, id: str) -> str:
        return hmac.digest(self._key, id.encode(), "sha256").hex()


def _conversation_of(stored: Stored) -> list[InputItem]:
    """The items of a conversation up to the end of a stored response."""
    return [*stored["input"], *stored["response"]["output"]]


def _bring_up_to_date(shape: Any) -> None:
    """Change a record of an earlier version of this server to the form of today."""
    response = shape.get("response") if isinstance(shape, dict) else None
    if not isinstance(response, dict):
        return
    shape["response"] = _ADDED | response
    for items in (response.get("output"), shape.get("input")):
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("encrypted_content", "") is None:
                del item["encrypted_content"]


def _of_bytes(data: bytes, id: str) -> Stored:
    """The stored response in `data`. Raises Damaged where it is none, or has another id."""
    try:
        shape = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Damaged("no_json") from None
    _bring_up_to_date(shape)
    try:
        _STORED.validate_python(shape, strict=True)
    except (ValidationError, RecursionError):
        raise Damaged("wrong_fields") from None
    stored: Stored = shape
    if stored["response"]["id"] != id:
        raise Damaged("another")
    return stored


def shelf_of(request: Request) -> Shelf:
    """The shelf of the client that sent `request`. Without API keys all clients can read what any
    has stored, and each address has a share of the store."""
    context = context_of(request)
    key = key_of(request.headers) if context.api_keys else ""
    damaged = context.metrics.response_damaged
    return Shelf(context.responses, key, damaged, client_of(request))
