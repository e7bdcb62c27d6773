"""POST /v1/responses, and the routes for compaction, token counts and stored responses."""

import time
from collections.abc import AsyncGenerator
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from omlx_server.api.chat.choices import CACHE_HEADERS, Choices
from omlx_server.api.chat.turn import ChatTurn
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, WORK, Events, Operation, Query
from omlx_server.api.http import sse
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.exchange import note_failure, warn_of_left_out
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.responses import answers, shapes
from omlx_server.api.responses.chat_form import (
    chat_request,
    compaction_request,
    prompt_request,
    renamed_params,
)
from omlx_server.api.responses.event_types import AnyResponseEvent
from omlx_server.api.responses.events import ResponseEvents
from omlx_server.api.responses.items.items import ItemIds, new_response_id, page_of_items
from omlx_server.api.responses.items.messages import image_chars
from omlx_server.api.responses.per_key_store import Stored, per_key_store_of
from omlx_server.api.responses.schema import CompactRequest, InputTokensRequest, ResponsesRequest
from omlx_server.api.responses.tool_names import ToolNames
from omlx_server.errors import BadRequest, InternalError, OmlxError, ResponseNotFound

router = APIRouter()
Body = TypeVar("Body", ResponsesRequest, CompactRequest, InputTokensRequest)

_MAX_PAGE_ITEMS = 100
_KEPT_ROLES = ("user", "system", "developer")
_NOT_FOUND = (
    "there is no such response: it was not stored, was deleted, or had to go for newer ones"
)
_CREATE = Operation(
    "Responses",
    answers.Response,
    body=ResponsesRequest,
    events=Events(AnyResponseEvent, named=True),
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
).extra
_COMPACT = Operation(
    "Responses",
    answers.CompactedResponse,
    body=CompactRequest,
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
).extra
_COUNT = Operation("Responses", answers.InputTokens, body=InputTokensRequest, may_fail=MODEL).extra
_GET = Operation("Responses", answers.Response, may_fail=MODEL).extra
_DELETE = Operation("Responses", answers.DeletedResponse, may_fail=MODEL).extra
_CANCEL = Operation("Responses", None, may_fail=MODEL).extra
_PAGE_QUERY = (
    Query("limit", Annotated[int, Field(ge=1, le=_MAX_PAGE_ITEMS)], "The most items of a page."),
    Query("order", Literal["asc", "desc"], "By default the newest item comes first."),
    Query("after", str, "The last item's id of the page before."),
)
_ITEMS = Operation("Responses", answers.InputItemList, query=_PAGE_QUERY, may_fail=MODEL).extra


@router.post("/v1/responses", openapi_extra=_CREATE)
async def create_response(request: Request) -> Response:
    """Answer a conversation of items, whole or as a stream of server-sent events."""
    body, model = await _read_body_and_model(request, ResponsesRequest)
    answer = ResponseAnswer(body, model, request)
    choices = await while_connected(request.receive, answer.start())
    if not body.stream:
        content = await while_connected(request.receive, answer.whole(choices))
        return JsonResponse(content, headers=choices.headers())
    return sse.EventStream(
        answer.events(choices),
        context_of(request).keepalive_seconds,
        choices.headers,
        on_error=lambda error: sse.named_events(*answer.progress.fail(error)),
    )


@router.post("/v1/responses/compact", openapi_extra=_COMPACT)
async def compact_response(request: Request) -> Response:
    """Replace all of a conversation but the messages of user and system by a summary. The output is
    the input of the next request; nothing is stored."""
    body, model = await _read_body_and_model(request, CompactRequest)
    compacting = compact_conversation(body, model, request)
    content, headers = await while_connected(request.receive, compacting)
    return JsonResponse(content, headers=headers)


@router.post("/v1/responses/input_tokens", openapi_extra=_COUNT)
async def count_input_tokens(request: Request) -> Response:
    """Count the tokens of a request's prompt."""
    body, model = await _read_body_and_model(request, InputTokensRequest)
    id = new_response_id()
    items = await per_key_store_of(request).read_conversation(body, ItemIds(id))
    with renamed_params():  # errors name this API's fields
        name = body.model or model.names[0]
        chat = await context_of(request).threads.run(
            prompt_request, body, name, items, other_bytes=image_chars(items)
        )
        count = await ChatTurn(chat, model, request, id).count_tokens()
    return JsonResponse(answers.InputTokens(object="response.input_tokens", input_tokens=count))


@router.get("/v1/responses/{id}", openapi_extra=_GET)
async def get_response(request: Request, id: str) -> Response:
    """Return a stored response."""
    if request.query_params.get("stream", "").lower() in ("true", "1"):
        raise BadRequest("a stored response can't be streamed once more", param="stream")
    return JsonResponse((await _find_stored(request, id))["response"])


@router.delete("/v1/responses/{id}", openapi_extra=_DELETE)
async def delete_response(request: Request, id: str) -> Response:
    """Delete a stored response. Responses that continue it keep its items."""
    if not await per_key_store_of(request).delete(id):
        raise ResponseNotFound(_NOT_FOUND)
    return JsonResponse(answers.DeletedResponse(id=id, object="response", deleted=True))


@router.post("/v1/responses/{id}/cancel", openapi_extra=_CANCEL)
async def cancel_response(request: Request, id: str) -> Response:
    """Always refused: only background responses can be cancelled, and there are none."""
    await _find_stored(request, id)
    raise BadRequest("this response is complete; to cancel one, close its connection")


@router.get("/v1/responses/{id}/input_items", openapi_extra=_ITEMS)
async def list_input_items(request: Request, id: str) -> Response:
    """List the items a response was made from, newest first unless `order` is asc."""
    query = request.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc", param="order")
    limit = query.get("limit", "20")
    is_number = limit.isascii() and limit.isdigit() and len(limit) < 4
    if not (is_number and 1 <= int(limit) <= _MAX_PAGE_ITEMS):
        raise BadRequest(f"limit must be from 1 to {_MAX_PAGE_ITEMS}", param="limit")
    stored = await _find_stored(request, id)
    items, newest_first = stored["input"], order == "desc"
    page = page_of_items(items, int(limit), query.get("after"), newest_first=newest_first)
    return JsonResponse(page)


async def _read_body_and_model(request: Request, kind: type[Body]) -> tuple[Body, ServedModel]:
    """Return the body and its loaded model; warn of types in the body that are left out."""
    body = await body_of(request, kind)
    body.check()
    warn_of_left_out(body.unknown_types)
    model = await context_of(request).models.find(
        body.model, adapter=body.adapter, preset=body.preset
    )
    return body, model


async def _find_stored(request: Request, id: str) -> Stored:
    stored = await per_key_store_of(request).get(id)
    if stored is None:
        raise ResponseNotFound(_NOT_FOUND)
    return stored


class ResponseAnswer:
    """Makes one response and stores it at its end: call `start`, then `whole` or `events`.
    Cancelling a method, or closing the iterator of `events`, closes the generation."""

    def __init__(self, body: ResponsesRequest, model: ServedModel, request: Request) -> None:
        self._body = body
        self._model = model
        self._request = request
        self._responses = per_key_store_of(request)
        self._is_stored = body.store is not False and self._responses.is_enabled
        self._id = new_response_id()
        self._ids = ItemIds(self._id)
        self._items: list[answers.InputItem] = []
        self._names = ToolNames(body.tools or ())
        response = shapes.new_response(
            body, self._id, int(time.time()), model.defaults, is_stored=self._is_stored
        )
        self.progress = ResponseEvents(
            response, self._ids, self._names, seals_reasoning=body.seals_reasoning
        )

    async def start(self) -> Choices:
        """Read the conversation, encode its prompt and queue the request. Raises what
        `PerKeyStore.read_conversation` and `ChatTurn.start` raise."""
        self._items = await self._responses.read_conversation(self._body, self._ids)
        run = context_of(self._request).threads.run
        with renamed_params():
            other_bytes = image_chars(self._items)
            chat = await run(
                chat_request, self._body, self._items, self._names, other_bytes=other_bytes
            )
            return await ChatTurn(chat, self._model, self._request, self._id).start()

    async def whole(self, choices: Choices) -> answers.Response:
        async with choices.generation:
            async for delta in choices.deltas():
                self.progress.add(delta)
            self.progress.end(choices.usage, int(time.time()))
        await self._store_response()
        return self.progress.response

    async def events(self, choices: Choices) -> AsyncGenerator[bytes, None]:
        """Yield the events. The response is stored before the last: then the client may go on."""
        async with choices.generation:
            yield sse.named_events(*self.progress.begin())
            try:
                async for delta in choices.deltas():
                    if events := self.progress.add(delta):
                        yield sse.named_events(*events)
                last_events = self.progress.end(choices.usage, int(time.time()))
            except OmlxError as error:
                note_failure(error)
                last_events = self.progress.fail(error)
        await self._store_response()
        yield sse.named_events(*last_events)

    async def _store_response(self) -> None:
        if self._is_stored:
            await self._responses.put(Stored(response=self.progress.response, input=self._items))


async def compact_conversation(
    body: CompactRequest, model: ServedModel, request: Request
) -> tuple[answers.CompactedResponse, dict[str, str]]:
    """Return the compacted conversation and the headers of its answer: messages of user, system and
    developer stay, a summary of the model's replaces the rest. Cancelling closes the generation.

    Raises InternalError if the model wrote no summary, and what `PerKeyStore.read_conversation` and
    `ChatTurn.start` raise.
    """
    id = new_response_id()
    ids = ItemIds(id)
    store = per_key_store_of(request)
    items = await store.read_conversation(body, ids)
    with renamed_params():
        chat = await context_of(request).threads.run(
            compaction_request, body, items, model, other_bytes=image_chars(items)
        )
        choices = await ChatTurn(chat, model, request, id).start()
        async with choices.generation:
            summary = "".join([delta.text async for delta in choices.deltas()])
    if not summary.strip():
        raise InternalError("the model wrote no summary: send the conversation as it is")
    # Old instructions still hold, so they are kept word for word.
    messages = [item for item in items if item["type"] == "message" and item["role"] in _KEPT_ROLES]
    compaction: answers.CompactionOfResponse = {
        "id": ids.next("cmp"),
        "type": "compaction",
        "encrypted_content": store.seals.seal(summary),
    }
    answer: answers.CompactedResponse = {
        "id": id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*messages, compaction],
        "usage": shapes.usage(choices.usage),
    }
    return answer, choices.headers()
