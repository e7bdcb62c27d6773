"""What a server answers that can't be one: 503 and the reason, on every path but liveness.

The reason names files and settings, so it is told on this machine alone; others learn that
there is one.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from omlx_server.api.http.errors import response
from omlx_server.api.http.host import is_from_here
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.own.answers import ConfigHealth, Health
from omlx_server.errors import Unavailable, UsageError

_LIVE_PATH = "/health/live"
FOR_OTHERS = "the server's configuration is wrong; it says more on its own machine"


class Misconfigured(Unavailable):
    code = "misconfigured"


class DegradedApp:
    """`problem` is what is wrong, and may change. asyncio thread."""

    def __init__(self, problem: UsageError) -> None:
        self.problem = problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: Scope) -> ASGIApp:
        text = in_one_line(self.problem) if is_from_here(scope) else FOR_OTHERS
        if scope["path"] == _LIVE_PATH:
            config: ConfigHealth = {"problem": text, "needs_restart": []}
            live: Health = {"status": "ok", "engines": [], "memory": None, "config": config}
            return JsonResponse(live)
        return response(Misconfigured(text))


def in_one_line(problem: UsageError) -> str:
    """What is wrong and what helps."""
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message
