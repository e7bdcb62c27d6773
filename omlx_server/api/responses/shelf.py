"""The stored responses of one client.

What one API key has stored no other can find: its place in the store is made of the id and the key,
and neither can be found in what is stored.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable

from fastapi import Request

from omlx_server.api.access.guard import key_of
from omlx_server.api.context import context_of
from omlx_server.api.response_store.store import Damaged, Store
from omlx_server.api.responses.answers import InputItem
from omlx_server.api.responses.items.ids import is_response_id, response_of
from omlx_server.api.responses.items.seals import Seals
from omlx_server.api.responses.record import Stored, as_bytes, of_bytes
from omlx_server.errors import ItemNotFound

_log = logging.getLogger(__name__)


def _nobody(reason: str) -> None:
    return


class Shelf:
    """Its methods wait for the store in worker threads. `on_damage` is told why what is stored
    could not be used; any thread may call it. `seals` are of that client, too."""

    def __init__(self, store: Store, key: str, on_damage: Callable[[str], None] = _nobody) -> None:
        self._store = store
        self._key = key.encode()
        self.seals = Seals(self._key)
        self._on_damage = on_damage

    @property
    def keeps(self) -> bool:
        return self._store.keeps

    async def put(self, stored: Stored) -> None:
        await asyncio.to_thread(self._put, stored)

    async def get(self, id: str) -> Stored | None:
        """None also where what was stored can't be used."""
        if not is_response_id(id):
            return None
        return await asyncio.to_thread(self._get, id)

    async def delete(self, id: str) -> bool:
        return is_response_id(id) and await asyncio.to_thread(self._store.delete, self._name(id))

    async def item(self, id: str) -> InputItem:
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
        self._store.put(self._name(stored.response["id"]), as_bytes(stored))

    def _get(self, id: str) -> Stored | None:
        try:
            data = self._store.get(self._name(id))
            return None if data is None else of_bytes(data, id)
        except Damaged as error:
            _log.warning("%s", error)
            self._on_damage(error.reason)
            return None

    def _name(self, id: str) -> str:
        return hmac.new(self._key, id.encode(), hashlib.sha256).hexdigest()


def shelf_of(request: Request) -> Shelf:
    """Without API keys everybody has the same."""
    context = context_of(request)
    key = key_of(request.headers) if context.api_keys else ""
    return Shelf(context.responses, key, context.metrics.response_damaged)
