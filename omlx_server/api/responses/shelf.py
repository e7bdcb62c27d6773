"""One client's stored responses, and the conversations that go on from them.

The name of a response in the store is an HMAC of its id with the client's API key, so no key finds
another's. Stored data is validated, as files may be damaged or foreign.
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
from omlx_server.api.responses.items.items import ItemIds, is_response_id, response_of, stored_form
from omlx_server.api.responses.items.seals import Seals
from omlx_server.api.responses.schema import PromptFields, ReferenceItem
from omlx_server.errors import ItemNotFound, PreviousResponseNotFound

_log = logging.getLogger(__name__)


class Stored(TypedDict):
    """`input` is the conversation before the output, without instructions."""

    response: Response
    input: list[InputItem]


_STORED = TypeAdapter(Stored)
_ADDED = {"presence_penalty": 0.0, "frequency_penalty": 0.0}


class Shelf:
    """The stored responses of the client with the API key `key`; async methods use worker threads.

    `on_damage` gets the reason when a response is unusable; any thread. Responses count as those of
    `owner`.
    """

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
        """Return a stored response; None if missing or damaged."""
        if not is_response_id(id):
            return None
        return await asyncio.to_thread(self._get, id)

    async def delete(self, id: str) -> bool:
        return is_response_id(id) and await asyncio.to_thread(self._store.delete, self._name(id))

    async def item(self, id: str) -> InputItem:
        """Return an item of any of the client's stored responses. Raises ItemNotFound."""
        owner = response_of(id)
        stored = await self.get(owner) if owner else None
        for item in _conversation_of(stored) if stored else ():
            if item["id"] == id:
                return item
        raise ItemNotFound(
            "an item is not found; what belongs to responses with store false is not kept",
            param="input",
        )

    async def conversation(self, body: PromptFields, ids: ItemIds) -> list[InputItem]:
        """Return the items of the previous response's conversation, then the request's own.

        Raises PreviousResponseNotFound and ItemNotFound, and BadRequest if an item holds no text or
        a compaction is damaged.
        """
        before: list[InputItem] = []
        if body.previous_response_id is not None:
            stored = await self.get(body.previous_response_id)
            if stored is None:
                raise PreviousResponseNotFound(
                    "the previous response is not found: it was not stored, was deleted, or had to "
                    "go for newer ones",
                    param="previous_response_id",
                )
            before = _conversation_of(stored)
        inputs = body.input if isinstance(body.input, list) else []
        references = {item.id for item in inputs if isinstance(item, ReferenceItem)}
        named = {id: await self.item(id) for id in sorted(references)}
        items = before + await asyncio.to_thread(stored_form, body.input, ids, named.__getitem__)
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
    return [*stored["input"], *stored["response"]["output"]]


def _bring_up_to_date(shape: Any) -> None:
    """Update the record of an earlier version of this server."""
    response = shape.get("response") if isinstance(shape, dict) else None
    if not isinstance(response, dict):
        return
    shape["response"] = _ADDED | response
    for items in (response.get("output"), shape.get("input")):
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("encrypted_content", "") is None:
                del item["encrypted_content"]


def _of_bytes(data: bytes, id: str) -> Stored:
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
    """Return the shelf of a request's client. Without API keys all clients share one, and each
    address has a share of the store."""
    context = context_of(request)
    key = key_of(request.headers) if context.api_keys else ""
    damaged = context.metrics.response_damaged
    return Shelf(context.responses, key, damaged, client_of(request))
