"""What a server answers that can't be one: 503 and the reason, on every path but liveness.

The reason names files and settings, so it is told on this machine alone; others learn that
there is one.
"""

import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from omlx_server.api.errors import response
from omlx_server.api.host import host_of
from omlx_server.api.json import JsonResponse
from omlx_server.errors import Unavailable, UsageError

_LIVE_PATH = "/health/live"
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")
_FOR_OTHERS = "the server's configuration is wrong; it says more on its own machine"


class Misconfigured(Unavailable):
    code = "misconfigured"


class DegradedApp:
    """`problem` is what is wrong, and may change. asyncio thread."""

    def __init__(self, problem: UsageError) -> None:
        self.problem = problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: Scope) -> ASGIApp:
        if scope["path"] == _LIVE_PATH:
            return JsonResponse({"status": "ok", "engines": []})
        text = in_one_line(self.problem) if _is_from_here(scope) else _FOR_OTHERS
        return response(Misconfigured(text))


def in_one_line(problem: UsageError) -> str:
    """What is wrong and what helps."""
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message


def _is_from_here(scope: Scope) -> bool:
    """By address, and by name too: a page in a browser here may be a stranger's."""
    client, name = scope.get("client"), host_of(Headers(scope=scope).get("host", ""))
    return client is not None and _is_loopback(client[0]) and name in _OWN_NAMES


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
