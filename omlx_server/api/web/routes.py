"""The files of the page below /web, and its options. Open to all, as they hold no data."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from omlx_server import __version__
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, Bytes, Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.static_files import WebFiles, file_response
from omlx_server.errors import NotFound

router = APIRouter()


class PageOptions(TypedDict):
    """The options of the page. `needs_key`: requests need an API key; `admin`: there are admin
    routes; `needs_token`: they need the admin token; `models`: those of the start are loaded."""

    version: str
    needs_key: bool
    admin: bool
    needs_token: bool
    models: bool


class NoSuchFile(NotFound):
    code = "not_found"


_FILE = Operation(
    "Page", Bytes(WebFiles().media(), "The file."), may_fail=MODEL, is_open=True
).extra


@router.get("/web/about.json", openapi_extra=Operation("Page", PageOptions, is_open=True).extra)
async def about(request: Request) -> Response:
    """Return the options of the page."""
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
    """Return a file of the page."""
    web = context_of(request).web
    page_file = await asyncio.to_thread(web.find, path) if web is not None else None
    if page_file is None:
        raise NoSuchFile("the page has no such file")
    return file_response(page_file, request.headers)
