"""Makes the limits of client connections from the settings."""

from omlx_server.api.http.connection_timeouts import ConnectionLimits
from omlx_server.settings.sections import Server


def connection_limits(server: Server) -> ConnectionLimits:
    """The limits of one client connection, from the section `server` of the settings."""
    return ConnectionLimits(
        header_bytes=server.max_header_bytes,
        header_seconds=server.header_timeout_seconds,
        body_seconds=server.body_timeout_seconds,
        write_seconds=server.write_timeout_seconds,
    )
