"""The app of a server with an unusable configuration: 503 with the reason, but 200 on /health/live.

The reason names files and settings, so only requests from this machine get it.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from omlx_server.api.http.errors import error_response
from omlx_server.api.http.host import is_from_here
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.own.answers import ConfigHealth, Health
from omlx_server.errors import Unavailable, UsageError

_LIVE_PATH = "/health/live"
FOR_OTHERS = "the server's configuration is wrong; it says more on its own machine"


class Misconfigured(Unavailable):
    code = "misconfigured"


class DegradedApp:
    """Answers every request with `problem`, which may be replaced. asyncio thread."""

    def __init__(self, problem: UsageError) -> None:
        self.problem = problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._response_for(scope)(scope, receive, send)

    def _response_for(self, scope: Scope) -> ASGIApp:
        text = in_one_line(self.problem) if is_from_here(scope) else FOR_OTHERS
        if scope["path"] == _LIVE_PATH:
            config: ConfigHealth = {"problem": text, "needs_restart": []}
            live: Health = {"status": "ok", "engines": [], "memory": None, "config": config}
            return JsonResponse(live)
        return error_response(Misconfigured(text), scope["path"])


def in_one_line(problem: UsageError) -> str:
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message
