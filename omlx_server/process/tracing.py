"""Decides whether the server makes trace spans."""

import logging
import os
from collections.abc import Mapping

from omlx_server.api.http.exchange import Tracer
from omlx_server.errors import UsageError, how_to_install
from omlx_server.settings import Settings

_log = logging.getLogger(__name__)
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_OFF = "OTEL_SDK_DISABLED"
_INSTALL = how_to_install("otel")


def find_tracer(settings: Settings, environ: Mapping[str, str] = os.environ) -> Tracer | None:
    """Return the tracer, if spans are wanted. Raises UsageError without the extra."""
    is_enabled = settings.tracing.enabled
    if environ.get(_OFF, "").lower() == "true":
        return None
    if not (is_enabled or any(environ.get(name) for name in _ENDPOINTS)):
        return None
    try:
        from omlx_server.api.metrics.otel import make_tracer
    except ImportError:
        if is_enabled:
            raise UsageError("tracing.enabled needs OpenTelemetry", hint=_INSTALL) from None
        _log.warning("%s is set, but no spans are made without: %s", _ENDPOINTS[0], _INSTALL)
        return None
    return make_tracer()
