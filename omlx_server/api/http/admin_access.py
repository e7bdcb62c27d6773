"""Who may administrate a server."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers

TOKEN_HEADER = "x-admin-token"


def _none() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Not `enabled`: there are no such routes. Without `needs_token` whoever may ask at all may do
    that, too. `find` reads the token anew, as it may come or change while the server runs; it is
    empty where there is none, and `problem` says why."""

    enabled: bool = True
    needs_token: bool = False
    find: Callable[[], str] = _none
    problem: str = "nobody has made one"

    def admits(self, headers: Headers) -> bool:
        """Whether a request carries the token. Reads a small file."""
        given = [text for text in (headers.get(TOKEN_HEADER, ""), _bearer(headers)) if text]
        token = self.find() if given else ""
        matches = [hmac.compare_digest(text.encode(), token.encode()) for text in given]
        return any(matches)


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
