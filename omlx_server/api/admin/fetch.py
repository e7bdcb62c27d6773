"""The admin routes that find, fetch and remove models."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from omlx_server.api.admin.answers import FetchEvent, FetchProgress, ModelRemoved
from omlx_server.api.admin.guard import require_admin
from omlx_server.api.admin.models import ModelName
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, Events, Operation, Query
from omlx_server.api.http.errors import envelope
from omlx_server.api.http.exchange import current_exchange
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.sse import EventStream, named_events
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.models.listing import (
    MOST_AT_ONCE,
    Catalogue,
    ModelFetched,
    ModelFetcher,
    ModelOffers,
    ModelResolved,
)
from omlx_server.errors import (
    BadRequest,
    Conflict,
    ModelNotFound,
    ModelUnavailable,
    OmlxError,
    QueueFull,
    Unavailable,
)
from omlx_server.models.hub.names import LONGEST_NAME

router = APIRouter(dependencies=[Depends(require_admin)])

_PROGRESS_SECONDS = 0.25
_NAME = Query("name", str, "As `omlx-server pull` takes it.")
_RESOLVE = Operation("Admin", ModelResolved, query=(_NAME,), may_fail=(503,)).extra
_TEXT = Query("text", str, "Words of a model's name.")
_SEARCH = Operation("Admin", ModelOffers, query=(_TEXT,), may_fail=(503,)).extra
_REMOVE = Operation("Admin", ModelRemoved, body=ModelName, may_fail=(*MODEL, 409, 503)).extra
_PULL = Operation(
    "Admin",
    None,
    body=ModelName,
    events=Events(FetchEvent, named=True),
    may_fail=(*MODEL, 429, 503),
).extra
FetchStep = FetchProgress | ModelFetched


class FetchStopped(OmlxError):
    """Ends a fetch in its thread, as its client is gone."""


class FetchProblem(Unavailable):
    code = "model_unavailable"


@router.get("/admin/models/resolve", openapi_extra=_RESOLVE)
async def resolve(request: Request, name: str | None = None) -> Response:
    """The model that a name stands for: one that is here, one that can be fetched, an alias, or
    nothing; then with names that are near. Uses no network."""
    if not name or len(name) > LONGEST_NAME:
        raise BadRequest(
            f"a name of at most {LONGEST_NAME} characters is needed, as ?name=", param="name"
        )
    resolved = await asyncio.to_thread(_fetcher(request).resolve, name)
    return JsonResponse(resolved)


@router.get("/admin/models/search", openapi_extra=_SEARCH)
async def search(request: Request, text: str = "") -> Response:
    """The models that have a short name, and with a text those of the hub: their size, context and
    abilities, and whether they fit into this server's memory. Without a text it uses no network."""
    if len(text) > LONGEST_NAME:
        raise BadRequest(f"at most {LONGEST_NAME} characters can be searched for", param="text")
    return JsonResponse(await asyncio.to_thread(_fetcher(request).search, text.strip()))


@router.post("/admin/models/remove", openapi_extra=_REMOVE)
async def remove(request: Request) -> Response:
    """Remove a model's files from the disk, by the name that /admin/models tells first. A loaded
    model stays, and so do those that the server was started with."""
    body = await body_of(request, ModelName)
    fetcher, models = _fetcher(request), context_of(request).models
    listings = [*models.known(), *models.catalogue.broken()]
    if all(listing.names[0] != body.model for listing in listings):
        raise ModelNotFound(f"There is no model {body.model[:200]!r} here", param="model")
    try:
        async with models.pool.paused() as keys:
            in_use = [path for key in keys if (path := models.catalogue.directory(key))]
            freed = await asyncio.to_thread(fetcher.remove, body.model, in_use)
    except ModelUnavailable as error:
        raise Conflict(error.with_hint) from None
    await models.catalogue.refresh(anew=True)
    return JsonResponse(ModelRemoved(model=body.model, freed_bytes=freed))


@router.post("/admin/models/pull", openapi_extra=_PULL)
async def pull(request: Request) -> Response:
    """Fetch a model, and tell of it as server-sent events. Closing the connection ends it; what has
    come stays for the next time."""
    body = await body_of(request, ModelName)
    steps = await start_fetch(request, body.model)
    return EventStream(
        _event_bytes(steps),
        context_of(request).keepalive_seconds,
        on_error=lambda error: named_events({"type": "error", **envelope(error)}),
    )


async def start_fetch(request: Request, name: str) -> AsyncGenerator[FetchStep, None]:
    """Return the steps of a fetch, which begins with the first; closing the generator ends it. It
    raises QueueFull and FetchProblem. Raises ModelNotFound, and Unavailable without a fetcher."""
    fetcher = _fetcher(request)
    resolved = await asyncio.to_thread(fetcher.resolve, name)
    if resolved["kind"] == "unknown":
        suggestions = resolved["suggestions"]
        near = f" Did you mean {' or '.join(suggestions)}?" if suggestions else ""
        raise ModelNotFound(f"There is no model {name[:200]!r}.{near}", param="model")
    # The log gets a known name first: the client's own text may be an address with a query.
    names = [*resolved["names"], resolved["alias_of"], resolved["name"]]
    current_exchange().about = label_of(next(filter(None, names)))
    return _run_fetch(fetcher, name, context_of(request).models.catalogue)


def _fetcher(request: Request) -> ModelFetcher:
    fetcher = context_of(request).fetcher
    if fetcher is None:
        raise Unavailable("this server fetches no models")
    return fetcher


async def _event_bytes(steps: AsyncGenerator[FetchStep, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(steps):
        async for step in steps:
            yield named_events(step)


async def _run_fetch(
    fetcher: ModelFetcher, name: str, catalogue: Catalogue
) -> AsyncGenerator[FetchStep, None]:
    if not fetcher.free.acquire(blocking=False):
        raise QueueFull(f"{MOST_AT_ONCE} models are being fetched already", retry_after=10)
    progress = _LatestProgress()
    task = asyncio.ensure_future(asyncio.to_thread(_fetch_in_thread, fetcher, name, progress))
    # The exception is looked at in any case, or asyncio would log it.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        last_sent = None
        while not task.done():
            if progress.latest != last_sent:
                last_sent = progress.latest
                yield last_sent
            await asyncio.wait({task}, timeout=_PROGRESS_SECONDS)
        await catalogue.refresh(anew=True)  # so that it can be used at once
        yield task.result()
    except ModelUnavailable as error:
        raise FetchProblem(error.with_hint) from None
    finally:
        progress.stop()


def _fetch_in_thread(fetcher: ModelFetcher, name: str, progress: "_LatestProgress") -> ModelFetched:
    try:
        return fetcher.fetch(name, progress)
    finally:
        fetcher.free.release()


class _LatestProgress:
    """A progress listener that keeps the latest state, and can end the work."""

    def __init__(self) -> None:
        self._stopped = False
        self.update("look", 0, 0)

    def update(self, stage: str, done: int, total: int) -> None:
        if self._stopped:
            raise FetchStopped("nobody waits for it any more")
        self.latest = FetchProgress(type="progress", stage=stage, done=done, total=total)

    def stop(self) -> None:
        self._stopped = True
