"""Sign a browser in with a code that is good once. Open to all of this machine."""

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import StringConstraints
from starlette.responses import Response

from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.json_body import StrictModel
from omlx_server.api.http.sign_in_codes import Credentials, require_from_here
from omlx_server.errors import Forbidden

router = APIRouter()


class SignIn(StrictModel):
    code: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}$")]


class CodeNotValid(Forbidden):
    code = "sign_in_code_not_valid"


_SIGN_IN = Operation("Page", Credentials, body=SignIn, is_open=True).extra


@router.post("/sign-in", openapi_extra=_SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Return the API key and admin token for which a code stands."""
    require_from_here(request.scope)
    body = await body_of(request, SignIn)
    credentials = context_of(request).sign_in_codes.redeem(body.code)
    if credentials is None:
        raise CodeNotValid("this code was used before, or is too old")
    return JsonResponse(credentials, headers={"Cache-Control": "no-store"})
