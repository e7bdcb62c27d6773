"""The right to call a server's admin routes."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers

TOKEN_HEADER = "x-admin-token"


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """The right to call the admin routes. `find` returns the admin token, read anew at each call,
    or "" where `problem` says why there is none."""

    enabled: bool = True
    needs_token: bool = False
    find: Callable[[], str] = str
    problem: str = "nobody has made one"

    def admits(self, headers: Headers) -> bool:
        """Return whether a request has the admin token. May read a small file."""
        tokens = [text for text in (headers.get(TOKEN_HEADER, ""), bearer_of(headers)) if text]
        token = self.find() if tokens else ""
        matches = [hmac.compare_digest(text.encode(), token.encode()) for text in tokens]
        return any(matches)


def bearer_of(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
