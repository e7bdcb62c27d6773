"""The app of a server whose configuration can't be used: it answers 503 with the reason on every
path but /health/live, which answers 200 with the reason.

The reason names files and settings, so only requests from this machine get it; others get a
sentence that says no more than that the configuration is wrong.
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
    """Answers every request with what is wrong (`problem`, which may be replaced at any time).
    Runs on the asyncio thread."""

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
        return response(Misconfigured(text), scope["path"])


def in_one_line(problem: UsageError) -> str:
    """The error's message, with its hint in brackets if it has one."""
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message
