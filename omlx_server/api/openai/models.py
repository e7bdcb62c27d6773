"""GET /v1/models and /v1/models/{id}. Ids may hold slashes."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.context import context_of
from omlx_server.api.json import JsonResponse
from omlx_server.api.served import ServedModel

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """Every name that a request may use."""
    models = context_of(request).models.items()
    return JsonResponse({"object": "list", "data": [_shape(*item) for item in models]})


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    """One model by name."""
    return JsonResponse(_shape(name, context_of(request).models.find(name)))


def _shape(name: str, model: ServedModel) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "omlx_server",
        "max_model_len": model.context_length,
    }
