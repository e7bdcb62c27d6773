"""The stored responses of one API key, and the conversations that go on from them.

A key finds its own responses only: the name of one in the store is an HMAC of its id with the key.
Stored data is validated, as files may be damaged or foreign.
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
from omlx_server.api.response_store.store import DamagedResponse, ResponseStore
from omlx_server.api.responses.answers import InputItem, Response
from omlx_server.api.responses.items.items import ItemIds, is_response_id, response_of, stored_form
from omlx_server.api.responses.items.seals import SummarySeals
from omlx_server.api.responses.schema import PromptFields, ReferenceItem
from omlx_server.errors import ItemNotFound, PreviousResponseNotFound

_log = logging.getLogger(__name__)


class Stored(TypedDict):
    """`input` is the conversation before the output, without instructions."""

    response: Response
    input: list[InputItem]


_STORED = TypeAdapter(Stored)
_FIELDS_ADDED_LATER = {"presence_penalty": 0.0, "frequency_penalty": 0.0}


class PerKeyStore:
    """The part of `store` that the API key `key` can reach; async methods use worker threads.

    `on_damage` gets the reason when a response is unusable; any thread. Responses count as those of
    `owner` when the store is full.
    """

    def __init__(
        self, store: ResponseStore, key: str, on_damage: Callable[[str], None], owner: bytes = b""
    ) -> None:
        self.is_enabled = store.is_enabled
        self._store = store
        self._key = key.encode()
        self._owner = owner
        self.seals = SummarySeals(self._key)
        self._on_damage = on_damage

    async def put(self, stored: Stored) -> None:
        await asyncio.to_thread(self._put, stored)

    async def get(self, id: str) -> Stored | None:
        """Return a stored response; None if it is missing, damaged or another key's."""
        if not is_response_id(id):
            return None
        return await asyncio.to_thread(self._get, id)

    async def delete(self, id: str) -> bool:
        return is_response_id(id) and await asyncio.to_thread(self._store.delete, self._name_of(id))

    async def find_item(self, id: str) -> InputItem:
        """Return an item of any of the client's stored responses. Raises ItemNotFound."""
        response_id = response_of(id)
        stored = await self.get(response_id) if response_id else None
        for item in _conversation_of(stored) if stored else ():
            if item["id"] == id:
                return item
        raise ItemNotFound(
            "an item is not found; what belongs to responses with store false is not kept",
            param="input",
        )

    async def read_conversation(self, body: PromptFields, ids: ItemIds) -> list[InputItem]:
        """Return the items of the previous response's conversation, then the request's own.

        Raises PreviousResponseNotFound and ItemNotFound, and BadRequest if an item holds no text or
        a compaction is damaged.
        """
        earlier: list[InputItem] = []
        if body.previous_response_id is not None:
            stored = await self.get(body.previous_response_id)
            if stored is None:
                raise PreviousResponseNotFound(
                    "the previous response is not found: it was not stored, was deleted, or had to "
                    "go for newer ones",
                    param="previous_response_id",
                )
            earlier = _conversation_of(stored)
        inputs = body.input if isinstance(body.input, list) else []
        reference_ids = {item.id for item in inputs if isinstance(item, ReferenceItem)}
        referenced = {id: await self.find_item(id) for id in sorted(reference_ids)}
        own = await asyncio.to_thread(stored_form, body.input, ids, referenced.__getitem__)
        for item in earlier + own:
            if item["type"] == "compaction":
                self.seals.check(item["encrypted_content"], "input")
        return earlier + own

    def _put(self, stored: Stored) -> None:
        self._store.put(self._name_of(stored["response"]["id"]), orjson.dumps(stored), self._owner)

    def _get(self, id: str) -> Stored | None:
        try:
            data = self._store.get(self._name_of(id), self._owner)
            return None if data is None else _parse_stored(data, id)
        except DamagedResponse as error:
            _log.warning("%s", error)
            self._on_damage(error.reason)
            return None

    def _name_of(self, id: str) -> str:
        return hmac.digest(self._key, id.encode(), "sha256").hex()


def _conversation_of(stored: Stored) -> list[InputItem]:
    return [*stored["input"], *stored["response"]["output"]]


def _parse_stored(data: bytes, id: str) -> Stored:
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise DamagedResponse("no_json") from None
    _upgrade_record(record)
    try:
        _STORED.validate_python(record, strict=True)
    except (ValidationError, RecursionError):
        raise DamagedResponse("wrong_fields") from None
    stored: Stored = record
    if stored["response"]["id"] != id:
        raise DamagedResponse("another")
    return stored


def _upgrade_record(record: Any) -> None:
    """Give the record of an earlier version of this server its present form."""
    response = record.get("response") if isinstance(record, dict) else None
    if not isinstance(response, dict):
        return
    record["response"] = _FIELDS_ADDED_LATER | response
    for items in (response.get("output"), record.get("input")):
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("encrypted_content", "") is None:
                del item["encrypted_content"]


def per_key_store_of(request: Request) -> PerKeyStore:
    """Return the store of the request's API key. Without API keys all clients share one, and each
    address has a share of the room."""
    context = context_of(request)
    key = key_of(request.headers) if context.api_keys else ""
    count_damage = context.metrics.response_damaged
    return PerKeyStore(context.responses, key, count_damage, client_of(request))
