"""The stored responses of one client.

What one API key has stored no other can find: its place in the store is made of the id and the key,
and neither can be found in what is stored.
"""

import asyncio
import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import Request

from omlx_server.api.context import context_of
from omlx_server.api.guard import key_of
from omlx_server.api.responses.ids import is_response_id, response_of
from omlx_server.api.responses.items import ItemJson
from omlx_server.api.responses.store import Store
from omlx_server.errors import ItemNotFound


@dataclass(frozen=True, slots=True)
class Stored:
    """A response, and everything before its output but the instructions: the inputs and outputs of
    the responses that it goes on from, then its own input."""

    response: dict[str, Any]
    input: list[ItemJson]

    @property
    def conversation(self) -> list[ItemJson]:
        output: list[ItemJson] = self.response["output"]
        return [*self.input, *output]


class Shelf:
    """Its methods wait for the store in worker threads."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key.encode()

    @property
    def keeps(self) -> bool:
        return self._store.keeps

    async def put(self, stored: Stored) -> None:
        await asyncio.to_thread(self._put, stored)

    async def get(self, id: str) -> Stored | None:
        """None also where what was stored can't be read."""
        if not is_response_id(id):
            return None
        return await asyncio.to_thread(self._get, id)

    async def delete(self, id: str) -> bool:
        return is_response_id(id) and await asyncio.to_thread(self._store.delete, self._name(id))

    async def item(self, id: str) -> ItemJson:
        """An item of any stored response. Raises ItemNotFound."""
        owner = response_of(id)
        stored = await self.get(owner) if owner else None
        for item in stored.conversation if stored else ():
            if item["id"] == id:
                return item
        raise ItemNotFound(
            "an item is not found; what belongs to responses with store false is not kept",
            param="input",
        )

    def _put(self, stored: Stored) -> None:
        data = orjson.dumps({"response": stored.response, "input": stored.input})
        self._store.put(self._name(stored.response["id"]), data)

    def _get(self, id: str) -> Stored | None:
        data = self._store.get(self._name(id))
        if data is None:
            return None
        try:
            shape = orjson.loads(data)
            return Stored(shape["response"], shape["input"])
        except (ValueError, KeyError, TypeError):
            return None  # a file that was torn

    def _name(self, id: str) -> str:
        return hmac.new(self._key, id.encode(), hashlib.sha256).hexdigest()


def shelf_of(request: Request) -> Shelf:
    """Without API keys everybody has the same."""
    context = context_of(request)
    return Shelf(context.responses, key_of(request.headers) if context.api_keys else "")
