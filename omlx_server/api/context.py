"""The context of the routes, made by wiring/ and carried by each request in its ASGI scope."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from omlx_server.api.activity.activity import Activity
from omlx_server.api.http import json_body
from omlx_server.api.http.admin_access import AdminAccess
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.exchange import Tracer
from omlx_server.api.http.host import OwnNames
from omlx_server.api.http.sign_in_codes import SignInCodes
from omlx_server.api.http.static_files import WebFiles
from omlx_server.api.metrics.metrics import AppMetrics
from omlx_server.api.metrics.traffic import Traffic
from omlx_server.api.models.listing import ModelFetcher
from omlx_server.api.models.served import ServedModels
from omlx_server.api.rank_health import RankHealth
from omlx_server.api.response_store.store import MemoryStore, ResponseStore
from omlx_server.api.settings_editor import SettingsEditor
from omlx_server.api.worker_threads import TextThreads, WorkerThreads

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

CONTEXT = "omlx.context"
"""The key of a request's ASGI scope under which its ApiContext is kept."""

# The threads that decode images, at most one bitmap each.
_image_threads = partial(WorkerThreads, "images", 2, patience=60.0, niceness=10)


@dataclass(frozen=True, slots=True)
class ConfigState:
    """Why the config can't be used, if it can't, and keys that wait for a restart."""

    problem: str = ""
    needs_restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ApiContext:
    """Settings and parts for the routes."""

    models: ServedModels
    max_body_bytes: int
    keepalive_seconds: float
    request_timeout_seconds: float
    metrics: AppMetrics
    activity: Activity
    api_keys: tuple[str, ...] = ()
    per_key_salt: bool = True
    allowed_hosts: tuple[str, ...] = ()
    own_names: OwnNames | None = None
    cors_origins: tuple[str, ...] = ()
    responses: ResponseStore = field(default_factory=lambda: MemoryStore(0, 0))
    tracer: Tracer | None = None
    admin: AdminAccess = field(default_factory=AdminAccess)
    sign_in_codes: SignInCodes = field(default_factory=SignInCodes)
    shows_metrics: bool = True
    web: WebFiles | None = None
    speaks_ollama: bool = True
    config: ConfigState = field(default_factory=ConfigState)
    settings: SettingsEditor | None = None
    fetcher: ModelFetcher | None = None
    threads: TextThreads = field(default_factory=TextThreads)
    image_threads: WorkerThreads = field(default_factory=_image_threads)
    ranks: Callable[[], list[RankHealth]] = list
    traffic: Traffic = field(default_factory=Traffic)


def context_of(request: Request) -> ApiContext:
    context: ApiContext = request.scope[CONTEXT]
    return context


async def body_of(request: Request, kind: type[M]) -> M:
    """Read the JSON body of a request. Raises as `json_body.read`."""
    return await json_body.read(request, kind, context_of(request).max_body_bytes)


async def in_time(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` within the request's time. Raises as `while_connected`."""
    seconds = context_of(request).request_timeout_seconds
    return await while_connected(request.receive, work, seconds)
