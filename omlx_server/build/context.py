"""What every route may need."""

import logging

from omlx_server.api.context import ApiContext
from omlx_server.api.exchange import Tracer
from omlx_server.api.metrics import Metrics
from omlx_server.api.responses.disk import DiskStore
from omlx_server.api.responses.store import MemoryStore, NoStore, Store
from omlx_server.api.served import ServedModels
from omlx_server.settings import Settings

_log = logging.getLogger(__name__)


def make_context(
    models: ServedModels, settings: Settings, tracer: Tracer | None = None
) -> ApiContext:
    server = settings.server
    return ApiContext(
        models=models,
        metrics=Metrics(models),
        max_body_bytes=server.max_body_bytes,
        ping_seconds=server.sse_ping_seconds,
        request_timeout_seconds=server.request_timeout_seconds,
        responses=make_response_store(settings),
        per_key_salt=settings.cache.salt == "per-key",
        api_keys=tuple(key.get_secret_value() for key in settings.auth.api_keys),
        allowed_hosts=_allowed_hosts(settings),
        cors_origins=server.cors_origins,
        tracer=tracer,
    )


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


def _allowed_hosts(settings: Settings) -> tuple[str, ...]:
    """Names by which clients may call the server; a wildcard switches the check off."""
    hosts = settings.server.allowed_hosts
    if "*" in hosts:
        return ()
    return tuple({*(host.lower() for host in hosts), settings.server.host.lower()})
