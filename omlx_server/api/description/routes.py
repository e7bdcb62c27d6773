"""GET /openapi.json."""

import asyncio
import json
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from omlx_server.api.description.operation import described

router = APIRouter()


@router.get("/openapi.json", openapi_extra=described("Server", dict[str, Any]))
async def openapi(request: Request) -> Response:
    """This document."""
    text = await asyncio.to_thread(_text, request.app)
    return Response(text, media_type="application/json")


def _text(app: FastAPI) -> str:
    """The first time it takes a while. Bounds of numbers are too large for orjson."""
    return json.dumps(app.openapi(), ensure_ascii=False)
