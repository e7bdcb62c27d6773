"""GET /openapi.json."""

import asyncio
import json
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from omlx_server.api.description.operation import Operation

router = APIRouter()


@router.get("/openapi.json", openapi_extra=Operation("Server", dict[str, Any]).extra)
async def openapi(request: Request) -> Response:
    """This document."""
    text = await asyncio.to_thread(_text, request.app)
    return Response(text, media_type="application/json")


def _text(app: FastAPI) -> str:
    """The document as JSON. The first call takes a while. json is used because the bounds of some
    numbers are too large for orjson."""
    return json.dumps(app.openapi(), ensure_ascii=False)
