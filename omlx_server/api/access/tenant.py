"""The tenant of a request: with whom it shares cached prefixes, and the machine's time.

Where there are several API keys, each has cached prefixes of its own (unless `cache.salt` says
otherwise), so that no client can learn from the time of its answers what another one has asked. A
request's `cache_salt` divides the prefixes of one key further. Neither the key nor the salt can be
recovered from stored blocks.
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


# Prompts that begin with so many of the same tokens are of one conversation.
_FIRST_TOKENS = 64


class CacheShared(Forbidden):
    code = "cache_shared"


def salt_of(request: Request, cache_salt: str | None) -> bytes:
    """The salt that goes into a request's block keys; empty where all requests share blocks."""
    context = context_of(request)
    apart = context.per_key_salt and len(context.api_keys) > 1
    key = key_of(request.headers) if apart else ""
    if not key and cache_salt is None:
        return b""
    message = b"" if cache_salt is None else b"salt:" + cache_salt.encode(errors="replace")
    return hmac.digest(key.encode(), message, "sha256")


def salt_to_reset(request: Request, cache_salt: str | None) -> bytes | None:
    """The salt of the blocks that a request may drop; None where it may drop all blocks.

    Raises:
        CacheShared: several API keys share their blocks, and the request has no admin rights.
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


def client_of(request: Request) -> bytes:
    """Who sends a request, by what a client can't make up: a digest of its API key; its network
    where the server has no keys."""
    if context_of(request).api_keys:
        return hmac.digest(key_of(request.headers).encode(), b"owner", "sha256")
    return network_of(request.client.host if request.client else "")


def conversation_of(said: str | None, tokens: Sequence[int]) -> bytes:
    """Which of a client's conversations a prompt belongs to: the one that the request names, else
    that of all prompts with the same first tokens. It only divides what the client gets."""
    first = ",".join(map(str, tokens[:_FIRST_TOKENS])) if said is None else said
    return blake2b(first.encode(errors="replace"), digest_size=16).digest()
