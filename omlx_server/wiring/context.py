"""Makes the ApiContext of all routes from the settings."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from omlx_server.api.activity.activity import Activity
from omlx_server.api.cluster.report import ClusterMetrics, rank_health
from omlx_server.api.connections.connections import DEFAULT_DESCRIPTORS, Connections
from omlx_server.api.context import ApiContext
from omlx_server.api.http.admin_access import AdminAccess
from omlx_server.api.http.bodies import Bodies, most_body_bytes
from omlx_server.api.http.exchange import Tracer
from omlx_server.api.http.host import OwnNames, is_loopback
from omlx_server.api.http.static_files import WebFiles
from omlx_server.api.metric_helpers import OWN, VLLM
from omlx_server.api.metrics.metrics import AppMetrics
from omlx_server.api.metrics.traffic import Traffic
from omlx_server.api.models.listing import ModelFetcher
from omlx_server.api.models.served import ServedModels
from omlx_server.api.response_store.store import DiskStore, MemoryStore, ResponseStore
from omlx_server.core.cluster.state import ClusterReport
from omlx_server.settings import Settings
from omlx_server.settings.admin_token import TokenFileError, admin_token, read_admin_token
from omlx_server.wiring.memory import shares_of

_log = logging.getLogger(__name__)


def make_context(
    models: ServedModels,
    settings: Settings,
    tracer: Tracer | None = None,
    fetcher: ModelFetcher | None = None,
    cluster: Callable[[], ClusterReport | None] = lambda: None,
    descriptors: int = DEFAULT_DESCRIPTORS,
) -> ApiContext:
    """Return the context of a server whose process may open `descriptors` files."""
    server = settings.server
    bodies = most_body_bytes(shares_of(settings, cold=False).limit), server.body_timeout_seconds
    traffic = Traffic(Connections(descriptors), Bodies(*bodies), Bodies(0, bodies[1]))
    responses = make_response_store(settings)
    shared = VLLM if "vllm" in settings.metrics.compat else OWN
    return ApiContext(
        models=models,
        metrics=AppMetrics(models, shared, responses, traffic, [ClusterMetrics(cluster)]),
        activity=Activity(models),
        responses=responses,
        per_key_salt=settings.cache.salt == "per-key",
        # Other machines, and their names for this one, matter only off loopback.
        own_names=None if server.uds or is_loopback(server.host) else OwnNames(),
        tracer=tracer,
        fetcher=fetcher,
        ranks=lambda: rank_health(cluster()),
        traffic=traffic,
        admin=make_admin_access(settings),
        shows_metrics=settings.metrics.enabled,
        web=WebFiles() if settings.web.enabled else None,
        speaks_ollama=settings.ollama.enabled,
        **_changeable(settings),
    )


def changed_context(context: ApiContext, settings: Settings) -> ApiContext:
    return replace(context, **_changeable(settings))


def _changeable(settings: Settings) -> dict[str, Any]:
    server = settings.server
    return {
        "max_body_bytes": server.max_body_bytes,
        "keepalive_seconds": server.sse_ping_seconds,
        "request_timeout_seconds": server.request_timeout_seconds,
        "api_keys": tuple(key.reveal() for key in settings.auth.api_keys),
        "allowed_hosts": _allowed_hosts(settings),
        "cors_origins": server.cors_origins,
    }


def make_admin_access(settings: Settings) -> AdminAccess:
    """Return the access to the admin routes, making a token if needed. Without one the routes
    refuse every request. Raises ConfigError for an invalid OMLX_ADMIN_TOKEN."""
    if not settings.admin.enabled:
        return AdminAccess(enabled=False)
    if settings.auth.admin == "key":
        return AdminAccess()
    return AdminAccess(needs_token=True, find_token=read_admin_token, problem=_make_token(settings))


def _make_token(settings: Settings) -> str:
    if settings.cache.hot_cache_only:
        return "" if read_admin_token() else "with cache.hot_cache_only the server writes nothing"
    try:
        admin_token()
    except TokenFileError as error:
        _log.warning("models can't be loaded on command: %s", error.message)
        return error.message
    return ""


def make_response_store(settings: Settings) -> ResponseStore:
    """Return the store of responses: in memory if its directory can't be used."""
    wanted = settings.responses
    if wanted.store == "off":
        return MemoryStore(0, 0)
    if wanted.store == "disk":
        if settings.cache.hot_cache_only:
            _log.warning("cache.hot_cache_only is on, so responses are kept in memory only")
        else:
            try:
                return DiskStore(wanted.directory, wanted.max_entries, wanted.max_bytes)
            except OSError as error:
                _log.warning(
                    "%s can't be used, responses are kept in memory only: %s",
                    wanted.directory,
                    error.strerror,
                )
    return MemoryStore(wanted.max_entries, wanted.max_bytes)


def _allowed_hosts(settings: Settings) -> tuple[str, ...]:
    hosts = settings.server.allowed_hosts
    if "*" in hosts:
        return ()
    return tuple({*(host.lower() for host in hosts), settings.server.host.lower()})
