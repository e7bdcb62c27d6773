"""Makes one response, whole or streamed, or compacts a conversation. asyncio thread.

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
from omlx_server.api.responses import answers, shapes
from omlx_server.api.responses.answers import InputItem, Response
from omlx_server.api.responses.chat_form import chat_request, compaction_request, renamed_params
from omlx_server.api.responses.events import ResponseEvents
from omlx_server.api.responses.items.ids import ItemIds, new_response_id
from omlx_server.api.responses.items.messages import image_chars
from omlx_server.api.responses.schema import CompactRequest, ResponsesRequest
from omlx_server.api.responses.shelf import Stored, shelf_of
from omlx_server.api.responses.tool_names import ToolNames
from omlx_server.errors import InternalError, OmlxError


class ResponseAnswer:
    """Makes one response: call `start`, then `whole` or `events`."""

    def __init__(self, body: ResponsesRequest, model: ServedModel, request: Request) -> None:
        self._body = body
        self._model = model
        self._request = request
        self._shelf = shelf_of(request)
        self._is_stored = body.store is not False and self._shelf.keeps
        self._id = new_response_id()
        self._ids = ItemIds(self._id)
        self._items: list[InputItem] = []
        opening = shapes.opening(
            body, self._id, int(time.time()), model.defaults, is_stored=self._is_stored
        )
        self._names = ToolNames(body.tools or ())
        self.progress = ResponseEvents(
            opening, self._ids, self._names, seals_reasoning=body.seals_reasoning
        )

    async def start(self) -> Choices:
        """Read the conversation, encode its prompt and queue the request. Raises what
        `Shelf.conversation` and `ChatTurn.start` raise."""
        self._items = await self._shelf.conversation(self._body, self._ids)
        run = context_of(self._request).threads.run
        with renamed_params():
            beside = image_chars(self._items)
            chat = await run(chat_request, self._body, self._items, self._names, beside=beside)
            return await ChatTurn(chat, self._model, self._request, self._id).start()

    async def whole(self, choices: Choices) -> Response:
        async with choices.generation:
            async for delta in choices.deltas():
                self.progress.take(delta)
            self.progress.end(choices.usage, int(time.time()))
        await self._store()
        return self.progress.response

    async def events(self, choices: Choices) -> AsyncGenerator[bytes, None]:
        """Yield the events. The response is stored before the last one, after which a client may go
        on."""
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
        await self._store()
        yield sse.named(*last)

    async def _store(self) -> None:
        if self._is_stored:
            await self._shelf.put(Stored(response=self.progress.response, input=self._items))


_KEPT = ("user", "system", "developer")


async def compacted(
    body: CompactRequest, model: ServedModel, request: Request
) -> tuple[answers.CompactedResponse, dict[str, str]]:
    """Return the compacted conversation and the headers of its answer: messages of user, system and
    developer stay, a summary of the model's replaces the rest.

    Raises InternalError if the model wrote no summary, and what `Shelf.conversation` and
    `ChatTurn.start` raise.
    """
    id, shelf = new_response_id(), shelf_of(request)
    ids = ItemIds(id)
    items = await shelf.conversation(body, ids)
    with renamed_params():
        chat = await context_of(request).threads.run(
            compaction_request, body, items, model, beside=image_chars(items)
        )
        choices = await ChatTurn(chat, model, request, id).start()
        async with choices.generation:
            summary = "".join([delta.text async for delta in choices.deltas()])
    if not summary.strip():
        raise InternalError("the model wrote no summary: send the conversation as it is")
    # Old instructions still hold, so they are kept word for word.
    messages = [one for one in items if one["type"] == "message" and one["role"] in _KEPT]
    item: answers.CompactionOfResponse = {
        "id": ids.next("cmp"),
        "type": "compaction",
        "encrypted_content": shelf.seals.seal(summary),
    }
    answer: answers.CompactedResponse = {
        "id": id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*messages, item],
        "usage": shapes.usage(choices.usage),
    }
    return answer, choices.headers()
