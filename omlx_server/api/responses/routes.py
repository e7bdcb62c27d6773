"""POST /v1/responses, and the routes for compaction, token counts and stored responses."""

from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from omlx_server.api.chat.choices import CACHE_HEADERS
from omlx_server.api.chat.turn import ChatTurn
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, WORK, Events, Operation, Query
from omlx_server.api.http import json_body, sse
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.exchange import left_out
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.responses import answers
from omlx_server.api.responses.answer import ResponseAnswer, compacted
from omlx_server.api.responses.chat_form import prompt_request, renamed_params
from omlx_server.api.responses.event_types import AnyResponseEvent
from omlx_server.api.responses.items.ids import ItemIds, new_response_id
from omlx_server.api.responses.items.items import page
from omlx_server.api.responses.items.messages import image_chars
from omlx_server.api.responses.schema import CompactRequest, InputTokensRequest, ResponsesRequest
from omlx_server.api.responses.shelf import Stored, shelf_of
from omlx_server.errors import BadRequest, ResponseNotFound

router = APIRouter()
Body = TypeVar("Body", ResponsesRequest, CompactRequest, InputTokensRequest)

_MAX_PAGE = 100
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
_PAGE = (
    Query("limit", Annotated[int, Field(ge=1, le=_MAX_PAGE)], "The most items of a page."),
    Query("order", Literal["asc", "desc"], "By default the newest item comes first."),
    Query("after", str, "The last item's id of the page before."),
)
_ITEMS = Operation("Responses", answers.InputItemList, query=_PAGE, may_fail=MODEL).extra


@router.post("/v1/responses", openapi_extra=_CREATE)
async def create_response(request: Request) -> Response:
    """Answer a conversation of items, whole or as a stream of server-sent events."""
    body, model = await _read(request, ResponsesRequest)
    answer = ResponseAnswer(body, model, request)
    choices = await while_connected(request.receive, answer.start())
    if not body.stream:
        content = await while_connected(request.receive, answer.whole(choices))
        return JsonResponse(content, headers=choices.headers())
    return sse.EventStream(
        answer.events(choices),
        context_of(request).keepalive_seconds,
        choices.headers,
        on_error=lambda error: sse.named(*answer.progress.fail(error)),
    )


@router.post("/v1/responses/compact", openapi_extra=_COMPACT)
async def compact_response(request: Request) -> Response:
    """Replace all of a conversation but the messages of user and system by a summary. The output is
    the input of the next request; nothing is stored."""
    body, model = await _read(request, CompactRequest)
    content, headers = await while_connected(request.receive, compacted(body, model, request))
    return JsonResponse(content, headers=headers)


@router.post("/v1/responses/input_tokens", openapi_extra=_COUNT)
async def count_input_tokens(request: Request) -> Response:
    """Count the tokens of a request's prompt."""
    body, model = await _read(request, InputTokensRequest)
    id = new_response_id()
    items = await shelf_of(request).conversation(body, ItemIds(id))
    with renamed_params():
        name = body.model or model.names[0]
        chat = await context_of(request).threads.run(
            prompt_request, body, name, items, beside=image_chars(items)
        )
        count = await ChatTurn(chat, model, request, id).count()
    return JsonResponse(answers.InputTokens(object="response.input_tokens", input_tokens=count))


@router.get("/v1/responses/{id}", openapi_extra=_GET)
async def get_response(request: Request, id: str) -> Response:
    """Return a stored response."""
    if request.query_params.get("stream", "").lower() in ("true", "1"):
        raise BadRequest("a stored response can't be streamed once more", param="stream")
    return JsonResponse((await _stored(request, id))["response"])


@router.delete("/v1/responses/{id}", openapi_extra=_DELETE)
async def delete_response(request: Request, id: str) -> Response:
    """Delete a stored response. Responses that continue it keep its items."""
    if not await shelf_of(request).delete(id):
        raise _not_found()
    return JsonResponse(answers.DeletedResponse(id=id, object="response", deleted=True))


@router.post("/v1/responses/{id}/cancel", openapi_extra=_CANCEL)
async def cancel_response(request: Request, id: str) -> Response:
    """Always refused: only background responses can be cancelled, and there are none."""
    await _stored(request, id)
    raise BadRequest("this response is complete; to cancel one, close its connection")


@router.get("/v1/responses/{id}/input_items", openapi_extra=_ITEMS)
async def list_input_items(request: Request, id: str) -> Response:
    """List the items a response was made from, newest first unless `order` is asc."""
    query = request.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc", param="order")
    limit = _limit(query.get("limit", "20"))
    stored = await _stored(request, id)
    items, newest_first = stored["input"], order == "desc"
    return JsonResponse(page(items, limit, query.get("after"), newest_first=newest_first))


async def _read(request: Request, kind: type[Body]) -> tuple[Body, ServedModel]:
    context = context_of(request)
    body = await json_body.read(request, kind, context.max_body_bytes)
    body.check()
    left_out(body.unknown_types)
    model = await context.models.find(body.model, adapter=body.adapter, preset=body.preset)
    return body, model


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
