"""POST /v1/responses, and what was stored of them."""

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from omlx_server.api.access.tenant import tenant_of
from omlx_server.api.chat.turn import Turn
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, WORK, Events, Query, described
from omlx_server.api.http import body, sse
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.openai.answers import CACHE_HEADERS
from omlx_server.api.responses import shapes
from omlx_server.api.responses.answer import ResponseAnswer
from omlx_server.api.responses.answers import (
    CompactedResponse,
    DeletedResponse,
    InputItemList,
    InputTokens,
)
from omlx_server.api.responses.answers import Response as ResponseShape
from omlx_server.api.responses.chat_form import prompt_request, renamed_params
from omlx_server.api.responses.compaction import Compaction
from omlx_server.api.responses.conversation import conversation
from omlx_server.api.responses.event_types import AnyResponseEvent
from omlx_server.api.responses.events import as_bytes
from omlx_server.api.responses.items.ids import ItemIds, new_response_id
from omlx_server.api.responses.items.items import page
from omlx_server.api.responses.record import Stored
from omlx_server.api.responses.schema import CompactRequest, InputTokensRequest, ResponsesRequest
from omlx_server.api.responses.shelf import shelf_of
from omlx_server.errors import BadRequest, ResponseNotFound

router = APIRouter()

_MAX_PAGE = 100
_CREATE = described(
    "Responses",
    ResponseShape,
    body=ResponsesRequest,
    events=Events(AnyResponseEvent, named=True),
    may_fail=MODEL + WORK,
)
_COMPACT = described(
    "Responses",
    CompactedResponse,
    body=CompactRequest,
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
)
_COUNT = described("Responses", InputTokens, body=InputTokensRequest, may_fail=MODEL)
_PAGE = (
    Query("limit", Annotated[int, Field(ge=1, le=_MAX_PAGE)], "The most items of a page."),
    Query("order", Literal["asc", "desc"], "By default the newest item comes first."),
    Query("after", str, "The last item's id of the page before."),
)
_ITEMS = described("Responses", InputItemList, query=_PAGE, may_fail=MODEL)


@router.post("/v1/responses", openapi_extra=_CREATE)
async def create_response(request: Request) -> Response:
    """Answer a conversation of items, whole or as a stream of server-sent events."""
    context = context_of(request)
    asked = await body.read(request, ResponsesRequest, context.max_body_bytes)
    asked.check()
    model = await context.models.find(asked.model)
    tenant = tenant_of(request, asked.cache_salt)
    answer = ResponseAnswer(asked, model, context, shelf_of(request), tenant)
    if not asked.stream:
        return JsonResponse(await sse.while_connected(request.receive, answer.whole()))
    generation = await sse.while_connected(request.receive, answer.start())
    return sse.EventStream(
        answer.events(generation),
        context.ping_seconds,
        on_error=lambda error: as_bytes(answer.progress.fail(error)),
    )


@router.post("/v1/responses/compact", openapi_extra=_COMPACT)
async def compact_response(request: Request) -> Response:
    """Make a conversation shorter: a summary of the model's stands for all but what the user and
    the system have said. The output is the input of the next request; nothing is stored."""
    context = context_of(request)
    asked = await body.read(request, CompactRequest, context.max_body_bytes)
    asked.check()
    model = await context.models.find(asked.model)
    tenant = tenant_of(request, asked.cache_salt)
    compaction = Compaction(asked, model, context, shelf_of(request), tenant)
    content = await sse.while_connected(request.receive, compaction.whole())
    return JsonResponse(content, headers=compaction.headers)


@router.post("/v1/responses/input_tokens", openapi_extra=_COUNT)
async def count_input_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a request has."""
    context = context_of(request)
    asked = await body.read(request, InputTokensRequest, context.max_body_bytes)
    asked.check()
    model = await context.models.find_or_only(asked.model)
    id = new_response_id()
    items = await conversation(asked, shelf_of(request), ItemIds(id))
    with renamed_params():
        chat = prompt_request(asked, asked.model or model.names[0], items)
        count = await Turn(chat, model, context, id=id, tenant=tenant_of(request, None)).count()
    return JsonResponse(InputTokens(object="response.input_tokens", input_tokens=count))


@router.get(
    "/v1/responses/{id}", openapi_extra=described("Responses", ResponseShape, may_fail=MODEL)
)
async def get_response(request: Request, id: str) -> Response:
    """A stored response."""
    if request.query_params.get("stream", "").lower() in ("true", "1"):
        raise BadRequest("a stored response can't be streamed once more", param="stream")
    return JsonResponse((await _stored(request, id)).response)


@router.delete(
    "/v1/responses/{id}", openapi_extra=described("Responses", DeletedResponse, may_fail=MODEL)
)
async def delete_response(request: Request, id: str) -> Response:
    """Forget a response. Those that went on from it have what they need of it."""
    if not await shelf_of(request).delete(id):
        raise _not_found()
    return JsonResponse(DeletedResponse(id=id, object="response", deleted=True))


@router.post(
    "/v1/responses/{id}/cancel", openapi_extra=described("Responses", None, may_fail=MODEL)
)
async def cancel_response(request: Request, id: str) -> Response:
    """Only what runs in the background can be cancelled so, and nothing does."""
    await _stored(request, id)
    raise BadRequest("this response is complete; to cancel one, close its connection")


@router.get("/v1/responses/{id}/input_items", openapi_extra=_ITEMS)
async def list_input_items(request: Request, id: str) -> Response:
    """What a response was made from, the newest first unless `order` is asc."""
    query = request.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc", param="order")
    limit = _limit(query.get("limit", "20"))
    stored = await _stored(request, id)
    items, more = page(
        stored.input, limit=limit, newest_first=order == "desc", after=query.get("after")
    )
    return JsonResponse(shapes.item_list(items, more=more))


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= _MAX_PAGE):
        raise BadRequest(f"limit must be from 1 to {_MAX_PAGE}", param="limit")
    return int(text)


async def _stored(request: Request, id: str) -> Stored:
    stored = await shelf_of(request).get(id)
    if stored is None:
        raise _not_found()
    return stored


def _not_found() -> ResponseNotFound:
    return ResponseNotFound(
        "there is no such response: it was not stored, was deleted, or had to go for newer ones"
    )
