"""The admin route that gives codes with which a browser signs in."""

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from omlx_server.api.access.guard import key_of
from omlx_server.api.admin.guard import require_admin
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import Operation
from omlx_server.api.http.admin_access import TOKEN_HEADER
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.sign_in_codes import CODE_SECONDS, require_from_here

router = APIRouter(dependencies=[Depends(require_admin)])


class SignInCode(TypedDict):
    """A code for the page's address, `/#in=CODE`, and for how many `seconds` it is good."""

    code: str
    seconds: int


@router.post("/admin/sign-in-code", openapi_extra=Operation("Admin", SignInCode).extra)
async def issue_code(request: Request) -> Response:
    """Return a code that stands once for the API key and admin token of this request."""
    require_from_here(request.scope)
    key, token = key_of(request.headers), request.headers.get(TOKEN_HEADER, "")
    code = context_of(request).sign_in_codes.issue({"key": key, "token": token})
    answer = SignInCode(code=code, seconds=CODE_SECONDS)
    return JsonResponse(answer, headers={"Cache-Control": "no-store"})
