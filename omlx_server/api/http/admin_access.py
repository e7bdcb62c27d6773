"""The right to call a server's admin routes."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers

TOKEN_HEADER = "x-admin-token"


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """The right to call the admin routes. `find_token` reads the admin token anew at each call; it
    returns "" where there is none, and `problem` says why."""

    enabled: bool = True
    needs_token: bool = False
    find_token: Callable[[], str] = str
    problem: str = "nobody has made one"

    def admits(self, headers: Headers) -> bool:
        """Return whether a request has the admin token. May read a small file."""
        given_tokens = [t for t in (headers.get(TOKEN_HEADER, ""), bearer_of(headers)) if t]
        token = self.find_token() if given_tokens else ""
        # All are compared, in constant time.
        matches = [hmac.compare_digest(given.encode(), token.encode()) for given in given_tokens]
        return any(matches)


def bearer_of(headers: Headers) -> str | None:
    """Return the token of `Authorization: Bearer TOKEN`."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
