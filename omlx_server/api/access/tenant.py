"""The tenant of a request, with whom it shares cached prefixes and the machine's time.

Each API key has its own prefixes (see `cache.salt`), or response times would tell of others'
prompts. Stored blocks reveal neither key nor `cache_salt`.
"""

import hmac
from collections.abc import Sequence
from hashlib import blake2b

from fastapi import Request

from omlx_server.api.access.guard import key_of
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import Query
from omlx_server.api.http.admin_access import TOKEN_HEADER
from omlx_server.api.http.host import network_of
from omlx_server.errors import Forbidden

SALT = Query("cache_salt", str, "As the `cache_salt` of a request: parts prefixes further.")


# Prompts that share this many first tokens are one conversation.
_FIRST_TOKENS = 64


class CacheShared(Forbidden):
    code = "cache_shared"


def salt_of(request: Request, cache_salt: str | None) -> bytes:
    """Return the salt of a request's block keys; empty where all share blocks."""
    context = context_of(request)
    apart = context.per_key_salt and len(context.api_keys) > 1
    key = key_of(request.headers) if apart else ""
    if not key and cache_salt is None:
        return b""
    message = b"" if cache_salt is None else b"salt:" + cache_salt.encode(errors="replace")
    return hmac.digest(key.encode(), message, "sha256")


def salt_to_reset(request: Request, cache_salt: str | None) -> bytes | None:
    """Return the salt of the blocks that a request may drop; None for all blocks. Where keys share
    blocks only an admin may drop them; others get CacheShared."""
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


def client_of(request: Request) -> bytes:
    """Return an identity that a client can't forge: a digest of its API key, or without keys its
    network."""
    if context_of(request).api_keys:
        return hmac.digest(key_of(request.headers).encode(), b"owner", "sha256")
    return network_of(request.client.host if request.client else "")


def conversation_of(said: str | None, tokens: Sequence[int]) -> bytes:
    """Return a digest of the conversation's name, or of the prompt's first tokens."""
    first = ",".join(map(str, tokens[:_FIRST_TOKENS])) if said is None else said
    return blake2b(first.encode(errors="replace"), digest_size=16).digest()
