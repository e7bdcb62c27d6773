"""Codes that sign a browser in. Each gives its caller's own credentials once. asyncio thread."""

import hmac
import secrets
from dataclasses import dataclass, field

from starlette.types import Scope
from typing_extensions import TypedDict

from omlx_server import clock
from omlx_server.api.http.host import is_from_here
from omlx_server.errors import Forbidden

CODE_SECONDS = 300
_MOST_CODES = 32
_RANDOM_BYTES = 32


def require_from_here(scope: Scope) -> None:
    """Raise Forbidden for a request of another machine or through a proxy."""
    if not is_from_here(scope):
        raise Forbidden("a browser is signed in on the server's own machine only")


class Credentials(TypedDict):
    """An API key and the admin token; "" for what was not given."""

    key: str
    token: str


@dataclass(slots=True)
class SignInCodes:
    """The codes that were not redeemed yet, oldest first, with the time at which each expires."""

    _codes: dict[str, tuple[float, Credentials]] = field(default_factory=dict)

    def issue(self, credentials: Credentials) -> str:
        """Return a new code. The oldest goes where there are too many."""
        self._drop_expired()
        if len(self._codes) >= _MOST_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(_RANDOM_BYTES)
        self._codes[code] = clock.now() + CODE_SECONDS, credentials
        return code

    def redeem(self, given: str) -> Credentials | None:
        """Return the credentials of a code and forget it; None for one that is not valid."""
        self._drop_expired()
        # All are compared, in constant time.
        matches = [code for code in self._codes if hmac.compare_digest(code, given)]
        return self._codes.pop(matches[0])[1] if matches else None

    def _drop_expired(self) -> None:
        now = clock.now()
        self._codes = {code: kept for code, kept in self._codes.items() if kept[0] > now}
