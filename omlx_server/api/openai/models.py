"""GET /v1/models and /v1/models/{id}. Ids may hold slashes."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, described
from omlx_server.api.json import JsonResponse
from omlx_server.api.openai.answers import Model, ModelList
from omlx_server.api.readers import Reader, longest
from omlx_server.api.served import ServedModel, ServedModels

router = APIRouter()


@router.get("/v1/models", openapi_extra=described("Models", ModelList))
async def list_models(request: Request) -> Response:
    """Every name that a request may use."""
    models = [_shape(*item) for item in _by_name(context_of(request).models).items()]
    names = [model["id"] for model in models] or [None]
    page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return JsonResponse({"object": "list", "data": models, **page})


@router.get("/v1/models/{name:path}", openapi_extra=described("Models", Model, may_fail=MODEL))
async def get_model(request: Request, name: str) -> Response:
    """One model by name."""
    models = context_of(request).models
    found = _by_name(models).get(name)
    return JsonResponse(_shape(name, models.find(name) if found is None else found))


def _by_name(models: ServedModels) -> dict[str, ServedModel | Reader]:
    """A name of a model that chats and of one that reads stands for the former."""
    found: dict[str, ServedModel | Reader] = dict(models.items())
    for name, model in models.readers.items():
        found.setdefault(name, model)
    return found


def _shape(name: str, model: ServedModel | Reader) -> dict[str, Any]:
    """For clients of OpenAI, of vLLM and of Anthropic at once."""
    context = longest(model)
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "omlx_server",
        "max_model_len": context,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": context,
    }
