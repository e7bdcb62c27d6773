"""Refuse requests without admin rights."""

from fastapi import Request

from omlx_server.api.context import context_of
from omlx_server.api.http import ollama_errors
from omlx_server.api.http.admin_access import TOKEN_HEADER
from omlx_server.errors import Forbidden, NotAuthorized

_HINT = (
    f"only the server's owner may do that: send {TOKEN_HEADER} with the token that is on its "
    "machine in ~/.config/omlx_server/admin-token (or below $XDG_CONFIG_HOME), or was given to "
    "it as OMLX_ADMIN_TOKEN"
)
# Most of Ollama's clients can set no other header, and show little of a message.
_OLLAMA_HINT = (
    "send Authorization: Bearer TOKEN, the admin token of this server "
    "(~/.config/omlx_server/admin-token on its machine)"
)


class AdminOnly(NotAuthorized):
    """No admin token. The log gets a short reason."""

    code = "admin_token_needed"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.reason = "no admin token, or a wrong one"


class AdminClosed(Forbidden):
    code = "admin_unavailable"


def require_admin(request: Request) -> None:
    """Raise AdminOnly (401) for a missing or wrong token, AdminClosed (403) if there is none."""
    access = context_of(request).admin
    if not access.needs_token or access.admits(request.headers):
        return
    if not access.find_token():
        raise AdminClosed(
            f"this server has no admin token: {access.problem}. Give it one as OMLX_ADMIN_TOKEN, "
            'or set auth.admin = "key" in its config.'
        )
    raise AdminOnly(_OLLAMA_HINT if ollama_errors.applies_to(request.url.path) else _HINT)
