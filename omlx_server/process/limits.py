"""Limits of client connections and of the process's descriptors."""

import resource
from contextlib import suppress

from omlx_server.api.connections.connection_timeouts import ConnectionLimits
from omlx_server.settings.sections import ServerSettings

# macOS gives no process more, whatever its hard limit says.
_MOST_DESCRIPTORS = 10_240


def connection_limits(server: ServerSettings) -> ConnectionLimits:
    return ConnectionLimits(
        header_bytes=server.max_header_bytes,
        header_seconds=server.header_timeout_seconds,
        body_seconds=server.body_timeout_seconds,
        write_seconds=server.write_timeout_seconds,
    )


def raise_descriptors() -> int:
    """Raise the limit of descriptors, and return it. mlx-lm must be imported, which lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
