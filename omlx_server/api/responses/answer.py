"""One response on its way: asked, streamed or whole, kept at the end. asyncio thread.

Cancelling what runs here closes the generation.
"""

import time
from collections.abc import AsyncGenerator

from omlx_server.api.access.tenant import Tenant
from omlx_server.api.chat.turn import Turn
from omlx_server.api.context import ApiContext
from omlx_server.api.http.exchange import failed
from omlx_server.api.models.served import ServedModel
from omlx_server.api.responses import shapes
from omlx_server.api.responses.answers import InputItem, Response
from omlx_server.api.responses.chat_form import chat_request, renamed_params
from omlx_server.api.responses.conversation import conversation
from omlx_server.api.responses.events import Progress, as_bytes
from omlx_server.api.responses.items.ids import ItemIds, new_response_id
from omlx_server.api.responses.record import Stored
from omlx_server.api.responses.schema import ResponsesRequest
from omlx_server.api.responses.shelf import Shelf
from omlx_server.engine.client.generation import Generation
from omlx_server.errors import OmlxError


class ResponseAnswer:
    """`start` comes first, then `events`; or `whole` alone."""

    def __init__(
        self,
        asked: ResponsesRequest,
        model: ServedModel,
        context: ApiContext,
        shelf: Shelf,
        tenant: Tenant,
    ) -> None:
        self._asked = asked
        self._model = model
        self._context = context
        self._shelf = shelf
        self._tenant = tenant
        self._kept = asked.stores and shelf.keeps
        self._id = new_response_id()
        self._ids = ItemIds(self._id)
        self._items: list[InputItem] = []
        self._turn: Turn
        opening = shapes.opening(asked, self._id, int(time.time()), model.defaults, kept=self._kept)
        self.progress = Progress(opening, self._ids, seals_reasoning=asked.seals_reasoning)

    async def start(self) -> Generation:
        """Render, encode and queue. All that is wrong with a request comes out here."""
        self._items = await conversation(self._asked, self._shelf, self._ids)
        with renamed_params():
            chat = chat_request(self._asked, self._items)
            self._turn = Turn(chat, self._model, self._context, id=self._id, tenant=self._tenant)
            return await self._turn.start()

    async def whole(self) -> Response:
        """The response in one piece."""
        async with await self.start() as generation:
            choices = self._turn.choices(generation)
            async for delta in choices.deltas():
                self.progress.take(delta)
            self.progress.end(choices.usage, int(time.time()))
        await self._keep()
        return self.progress.response

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The response as events. It is kept before the last one, which clients answer to."""
        async with generation:
            yield as_bytes(self.progress.begin())
            choices = self._turn.choices(generation)
            try:
                async for delta in choices.deltas():
                    if events := self.progress.take(delta):
                        yield as_bytes(events)
                last = self.progress.end(choices.usage, int(time.time()))
            except OmlxError as error:
                failed(error)
                last = self.progress.fail(error)
        await self._keep()
        yield as_bytes(last)

    async def _keep(self) -> None:
        if self._kept:
            await self._shelf.put(Stored(self.progress.response, self._items))
