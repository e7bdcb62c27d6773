"""The files of the page below /web, and what it asks first. They are open to whoever may call the
server at all, as they hold no data; all that the page asks for then needs a key."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server import __version__
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, Bytes, Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.static_files import WebFiles, sent
from omlx_server.api.web.answers import PageOptions
from omlx_server.errors import NotFound

router = APIRouter()

_ABOUT = Operation("Page", PageOptions, is_open=True).extra
_FILE = Operation(
    "Page", Bytes(WebFiles().media(), "The file."), may_fail=MODEL, is_open=True
).extra


class NoSuchFile(NotFound):
    code = "not_found"


@router.get("/web/about.json", openapi_extra=_ABOUT)
async def about(request: Request) -> Response:
    """What the page may offer here."""
    context = context_of(request)
    answer: PageOptions = {
        "version": __version__,
        "needs_key": bool(context.api_keys),
        "admin": context.admin.enabled,
        "needs_token": context.admin.enabled and context.admin.needs_token,
        "models": context.models.started,
    }
    return JsonResponse(answer, headers={"Cache-Control": "no-store"})


@router.get("/web/{path:path}", openapi_extra=_FILE)
async def file(request: Request, path: str) -> Response:
    """A file of the page."""
    web = context_of(request).web
    found = await asyncio.to_thread(web.find, path) if web is not None else None
    if found is None:
        raise NoSuchFile("the page has no such file")
    return sent(found, request.headers)
