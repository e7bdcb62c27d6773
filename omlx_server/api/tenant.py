"""Who shares cached prefixes with whom: the salt of a request's block keys.

Where there are several API keys, each has prefixes of its own, so that nobody can learn from the
time of an answer what somebody else has asked. A request's `cache_salt` parts it further. Neither
the key nor the salt can be found in what is stored.
"""

import hashlib
import hmac

from fastapi import Request

from omlx_server.api.context import context_of
from omlx_server.api.description.operation import Query
from omlx_server.api.guard import key_of

SALT = Query("cache_salt", str, "As the `cache_salt` of a request: parts prefixes further.")


def salt_of(request: Request, cache_salt: str | None) -> bytes:
    """The salt for the prefix cache; empty when everybody shares."""
    context = context_of(request)
    apart = context.per_key_salt and len(context.api_keys) > 1
    key = key_of(request.headers) if apart else ""
    if not key and cache_salt is None:
        return b""
    message = b"" if cache_salt is None else b"salt:" + cache_salt.encode(errors="replace")
    return hmac.new(key.encode(), message, hashlib.sha256).digest()
