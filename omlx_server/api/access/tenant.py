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
    are_keys_apart = context.per_key_salt and len(context.api_keys) > 1
    key = key_of(request.headers) if are_keys_apart else ""
    if not key and cache_salt is None:
        return b""
    message = b"" if cache_salt is None else b"salt:" + cache_salt.encode(errors="replace")
    return hmac.digest(key.encode(), message, "sha256")


def salt_to_reset(request: Request, cache_salt: str | None) -> bytes | None:
    """Return the salt of the blocks that a request may drop, None for all. Raises CacheShared."""
    context = context_of(request)
    has_one_tenant, admin = len(context.api_keys) < 2, context.admin
    is_admin = admin.enabled and (not admin.needs_token or admin.admits(request.headers))
    may_drop_all = has_one_tenant or is_admin
    if cache_salt is None and may_drop_all:
        return None
    if not (context.per_key_salt or may_drop_all):
        raise CacheShared(
            "the keys of this server share what is cached (cache.salt), so only its owner may drop "
            f"it: send {TOKEN_HEADER} with the admin token"
        )
    return salt_of(request, cache_salt)


def client_of(request: Request) -> bytes:
    """Return an identity that can't be forged: a digest of the API key, or the network."""
    if context_of(request).api_keys:
        return hmac.digest(key_of(request.headers).encode(), b"owner", "sha256")
    return network_of(request.client.host if request.client else "")


def conversation_of(name: str | None, tokens: Sequence[int]) -> bytes:
    """Return a digest of the conversation's name, or of the prompt's first tokens."""
    if name is None:
        name = ",".join(map(str, tokens[:_FIRST_TOKENS]))
    return blake2b(name.encode(errors="replace"), digest_size=16).digest()
