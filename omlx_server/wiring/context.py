"""What every route may need."""

import logging
from dataclasses import replace

from omlx_server.api.context import ApiContext
from omlx_server.api.families import OWN, VLLM
from omlx_server.api.http.admin_access import AdminAccess
from omlx_server.api.http.exchange import Tracer
from omlx_server.api.http.own_names import OwnNames, is_loopback
from omlx_server.api.metrics.metrics import Metrics
from omlx_server.api.models.served import ServedModels
from omlx_server.api.response_store.disk import DiskStore
from omlx_server.api.response_store.store import MemoryStore, NoStore, Store
from omlx_server.settings import Settings
from omlx_server.settings.admin_token import TokenFileError, admin_token, read_admin_token

_log = logging.getLogger(__name__)


def make_context(
    models: ServedModels, settings: Settings, tracer: Tracer | None = None
) -> ApiContext:
    server = settings.server
    responses = make_response_store(settings)
    shared = VLLM if "vllm" in settings.metrics.compat else OWN
    return ApiContext(
        models=models,
        metrics=Metrics(models, shared, responses),
        max_body_bytes=server.max_body_bytes,
        ping_seconds=server.sse_ping_seconds,
        request_timeout_seconds=server.request_timeout_seconds,
        responses=responses,
        per_key_salt=settings.cache.salt == "per-key",
        api_keys=tuple(key.reveal() for key in settings.auth.api_keys),
        allowed_hosts=_allowed_hosts(settings),
        own_names=_own_names(settings),
        cors_origins=server.cors_origins,
        tracer=tracer,
        admin=make_admin_access(settings),
        shows_metrics=settings.metrics.enabled,
    )


def changed_context(context: ApiContext, settings: Settings) -> ApiContext:
    """The same by other settings, as far as they can change while the server runs."""
    server = settings.server
    return replace(
        context,
        max_body_bytes=server.max_body_bytes,
        ping_seconds=server.sse_ping_seconds,
        request_timeout_seconds=server.request_timeout_seconds,
        api_keys=tuple(key.reveal() for key in settings.auth.api_keys),
        allowed_hosts=_allowed_hosts(settings),
        cors_origins=server.cors_origins,
    )


def make_admin_access(settings: Settings) -> AdminAccess:
    """Makes the server's token if need be. Without a place for it the server serves, but takes no
    orders.

    Raises:
        ConfigError: OMLX_ADMIN_TOKEN holds no token.
    """
    if not settings.admin.enabled:
        return AdminAccess(enabled=False)
    if settings.auth.admin == "key":
        return AdminAccess()
    return AdminAccess(needs_token=True, find=read_admin_token, problem=_make_token(settings))


def _make_token(settings: Settings) -> str:
    """Why there is none now."""
    if settings.cache.hot_cache_only:
        return "" if read_admin_token() else "with cache.hot_cache_only the server writes nothing"
    try:
        admin_token()
    except TokenFileError as error:
        _log.warning("models can't be loaded on command: %s", error.message)
        return error.message
    return ""


def make_response_store(settings: Settings) -> Store:
    """A directory that can't be used costs what outlives the process, not the server."""
    wanted = settings.responses
    if wanted.store == "off":
        return NoStore()
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


def _own_names(settings: Settings) -> OwnNames | None:
    """None where no other machine can call this one by a name."""
    server = settings.server
    return None if server.uds or is_loopback(server.host) else OwnNames()


def _allowed_hosts(settings: Settings) -> tuple[str, ...]:
    """Names by which clients may call the server; a wildcard switches the check off."""
    hosts = settings.server.allowed_hosts
    if "*" in hosts:
        return ()
    return tuple({*(host.lower() for host in hosts), settings.server.host.lower()})
