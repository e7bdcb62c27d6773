"""Makes one response, whole or as a stream, and stores it at the end. Runs on the asyncio thread.

Cancelling a method, or closing the iterator of `events`, closes the generation.
"""

import time
from collections.abc import AsyncGenerator

from fastapi import Request

from omlx_server.api.chat.choices import Choices
from omlx_server.api.chat.turn import ChatTurn
from omlx_server.api.context import context_of
from omlx_server.api.http import sse
from omlx_server.api.http.exchange import failed
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.responses import shapes
from omlx_server.api.responses.answers import InputItem, Response
from omlx_server.api.responses.chat_form import chat_request, renamed_params
from omlx_server.api.responses.events import ResponseEvents
from omlx_server.api.responses.items.ids import ItemIds, new_response_id
from omlx_server.api.responses.items.messages import image_chars
from omlx_server.api.responses.schema import ResponsesRequest
from omlx_server.api.responses.shelf import Stored, shelf_of
from omlx_server.api.responses.tool_names import ToolNames
from omlx_server.errors import OmlxError


class ResponseAnswer:
    """Makes one response: call `start` first, then `events` or `whole` with what it returns."""

    def __init__(self, asked: ResponsesRequest, model: ServedModel, request: Request) -> None:
        self._asked = asked
        self._model = model
        self._request = request
        self._shelf = shelf_of(request)
        self._kept = asked.store is not False and self._shelf.keeps
        self._id = new_response_id()
        self._ids = ItemIds(self._id)
        self._items: list[InputItem] = []
        opening = shapes.opening(asked, self._id, int(time.time()), model.defaults, kept=self._kept)
        self._names = ToolNames(asked.tools or ())
        self.progress = ResponseEvents(
            opening, self._ids, self._names, seals_reasoning=asked.seals_reasoning
        )

    async def start(self) -> Choices:
        """Find the conversation, render and encode its prompt, and queue the request. Every fault
        of a request is found here. Raises what `Shelf.conversation` and `Turn.start` raise."""
        self._items = await self._shelf.conversation(self._asked, self._ids)
        run = context_of(self._request).threads.run
        with renamed_params():
            beside = image_chars(self._items)
            chat = await run(chat_request, self._asked, self._items, self._names, beside=beside)
            return await ChatTurn(chat, self._model, self._request, self._id).start()

    async def whole(self, choices: Choices) -> Response:
        """The whole response as one JSON answer. It is stored, unless the request or the settings
        say otherwise."""
        async with choices.generation:
            async for delta in choices.deltas():
                self.progress.take(delta)
            self.progress.end(choices.usage, int(time.time()))
        await self._keep()
        return self.progress.response

    async def events(self, choices: Choices) -> AsyncGenerator[bytes, None]:
        """The response as events. It is stored before the last event is sent, as a client may go on
        from the response as soon as it has that event."""
        async with choices.generation:
            yield sse.named(*self.progress.begin())
            try:
                async for delta in choices.deltas():
                    if events := self.progress.take(delta):
                        yield sse.named(*events)
                last = self.progress.end(choices.usage, int(time.time()))
            except OmlxError as error:
                failed(error)
                last = self.progress.fail(error)
        await self._keep()
        yield sse.named(*last)

    async def _keep(self) -> None:
        if self._kept:
            await self._shelf.put(Stored(response=self.progress.response, input=self._items))
