"""Who may call the admin routes of a server."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers

TOKEN_HEADER = "x-admin-token"


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Who may call the admin routes. Without `enabled` the server has no admin routes. Without
    `needs_token` every client that passes the access guard may call them. `find` returns the
    server's admin token, read anew at each call, as its file may change; it returns "" where the
    server has none, and `problem` says why."""

    enabled: bool = True
    needs_token: bool = False
    find: Callable[[], str] = str
    problem: str = "nobody has made one"

    def admits(self, headers: Headers) -> bool:
        """Whether a request carries the admin token, in its own header or as a bearer token. Calls
        `find`, which may read a small file."""
        given = [text for text in (headers.get(TOKEN_HEADER, ""), bearer_of(headers)) if text]
        token = self.find() if given else ""
        matches = [hmac.compare_digest(text.encode(), token.encode()) for text in given]
        return any(matches)


def bearer_of(headers: Headers) -> str | None:
    """The Bearer token of a request; None where it has none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
