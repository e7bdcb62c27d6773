"""What every route may need, hung on the app by the composition root."""

from dataclasses import dataclass, field

from fastapi import Request

from omlx_server.api.http.admin_access import AdminAccess
from omlx_server.api.http.exchange import Tracer
from omlx_server.api.http.own_names import OwnNames
from omlx_server.api.metrics.metrics import Metrics
from omlx_server.api.models.served import ServedModels
from omlx_server.api.response_store.store import NoStore, Store
from omlx_server.api.text_threads import TextThreads

CONTEXT = "omlx.context"
"""Where a request's scope holds it."""


@dataclass(frozen=True, slots=True)
class ConfigState:
    """What became of the config while the server runs. With a `problem` the settings from before it
    are in force; the keys in `needs_restart` have other values in the config than in force."""

    problem: str = ""
    needs_restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ApiContext:
    models: ServedModels
    max_body_bytes: int
    ping_seconds: float
    request_timeout_seconds: float
    metrics: Metrics
    api_keys: tuple[str, ...] = ()
    per_key_salt: bool = True
    allowed_hosts: tuple[str, ...] = ()
    own_names: OwnNames | None = None
    cors_origins: tuple[str, ...] = ()
    responses: Store = field(default_factory=NoStore)
    tracer: Tracer | None = None
    admin: AdminAccess = field(default_factory=AdminAccess)
    shows_metrics: bool = True
    config: ConfigState = field(default_factory=ConfigState)
    threads: TextThreads = field(default_factory=TextThreads)


def context_of(request: Request) -> ApiContext:
    context: ApiContext = request.scope[CONTEXT]
    return context
