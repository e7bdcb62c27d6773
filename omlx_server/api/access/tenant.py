"""For whom a request is: with whom it shares cached prefixes, and the machine.

Where there are several API keys, each has prefixes of its own, so that nobody can learn from the
time of an answer what somebody else has asked. A request's `cache_salt` parts it further. Neither
the key nor the salt can be found in what is stored.
"""

import hashlib
import hmac
from dataclasses import dataclass

from fastapi import Request

from omlx_server.api.access.guard import key_of
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import Query
from omlx_server.api.http.admin_access import TOKEN_HEADER
from omlx_server.errors import Forbidden

SALT = Query("cache_salt", str, "As the `cache_salt` of a request: parts prefixes further.")


class CacheShared(Forbidden):
    code = "cache_shared"


@dataclass(frozen=True, slots=True)
class Tenant:
    """`salt` is that of the block keys; requests of one `owner` share its part of the machine."""

    salt: bytes
    owner: bytes


def tenant_of(request: Request, cache_salt: str | None) -> Tenant:
    """Of a request to an engine."""
    return Tenant(salt_of(request, cache_salt), owner_of(request))


def salt_of(request: Request, cache_salt: str | None) -> bytes:
    """The salt for the prefix cache; empty when everybody shares."""
    context = context_of(request)
    apart = context.per_key_salt and len(context.api_keys) > 1
    key = key_of(request.headers) if apart else ""
    if not key and cache_salt is None:
        return b""
    message = b"" if cache_salt is None else b"salt:" + cache_salt.encode(errors="replace")
    return hmac.new(key.encode(), message, hashlib.sha256).digest()


def salt_to_reset(request: Request, cache_salt: str | None) -> bytes | None:
    """Whose blocks a request may drop: those of one salt, or with None all.

    Raises:
        CacheShared: the keys share their blocks, and none of them owns the machine.
    """
    context = context_of(request)
    alone, admin = len(context.api_keys) < 2, context.admin
    gives_orders = admin.enabled and (not admin.needs_token or admin.admits(request.headers))
    if cache_salt is None and (alone or gives_orders):
        return None
    if not (context.per_key_salt or alone or gives_orders):
        raise CacheShared(
            "the keys of this server share what is cached (cache.salt), so only its owner may drop "
            f"it: send {TOKEN_HEADER} with the admin token"
        )
    return salt_of(request, cache_salt)


def owner_of(request: Request) -> bytes:
    """A digest of the API key. Empty where none is asked for: a name that anybody may choose would
    be as many parts of the machine as somebody wants."""
    if not context_of(request).api_keys:
        return b""
    return hmac.new(key_of(request.headers).encode(), b"owner", hashlib.sha256).digest()
