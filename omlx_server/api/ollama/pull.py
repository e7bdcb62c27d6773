"""POST /api/pull: fetches a model, with progress as JSON lines. Needs admin rights."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from omlx_server.api.admin.fetch import FetchStep, start_fetch
from omlx_server.api.admin.guard import require_admin
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, Operation
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.ollama import answers
from omlx_server.api.ollama.schema import PullRequest
from omlx_server.api.ollama.shapes import JsonLineStream, json_line
from omlx_server.errors import BadRequest

router = APIRouter(dependencies=[Depends(require_admin)])

_LOOKING_UP: answers.PullStatus = {"status": "pulling manifest"}
_DONE: answers.PullStatus = {"status": "success"}
_NOT_CHECKED: answers.PullStatus = {"status": "not checked: no network"}
_PULL = Operation(
    "Ollama",
    answers.PullStatus,
    body=PullRequest,
    lines=answers.PullLine,
    may_fail=(*MODEL, 429, 503),
).extra


@router.post("/api/pull", openapi_extra=_PULL)
async def pull(request: Request) -> Response:
    """Fetch a model, with progress as JSON lines; needs the admin token. Closing the connection
    stops it; the next request continues."""
    context = context_of(request)
    body = await body_of(request, PullRequest)
    name = await context.models.without_latest_tag(body.model or body.name or "")
    if not name:
        raise BadRequest("model is missing", param="model")
    steps = await start_fetch(request, name)
    if body.stream is False:
        await while_connected(request.receive, _run_to_end(steps))
        return JsonResponse(_DONE)
    return JsonLineStream(progress_lines(steps, name), context.keepalive_seconds, _LOOKING_UP)


async def _run_to_end(steps: AsyncGenerator[FetchStep, None]) -> None:
    async with aclosing(steps):
        async for _ in steps:
            pass


async def progress_lines(
    steps: AsyncGenerator[FetchStep, None], name: str
) -> AsyncGenerator[bytes, None]:
    """Yield a line for each step, and one more if the hub could not be asked; closes the steps."""
    # Clients show progress by a digest; the name's stands for all files of the model.
    digest = f"sha256:{hashlib.sha256(name.encode(errors='replace')).hexdigest()}"
    async with aclosing(steps):
        async for step in steps:
            if step["type"] == "done" and not step["checked"]:
                yield json_line(_NOT_CHECKED)
            yield json_line(_status_of(step, digest))


def _status_of(step: FetchStep, digest: str) -> answers.PullStatus:
    if step["type"] == "done":
        return _DONE
    if not step["total"]:
        return _LOOKING_UP
    return {
        "status": f"{step['stage']} {digest[7:19]}",
        "digest": digest,
        "total": step["total"],
        "completed": step["done"],
    }
