"""The prompt of a request about the prefix cache."""

from dataclasses import dataclass

from fastapi import Request

from omlx_server.api.access.tenant import salt_of
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.turn import read_and_encode
from omlx_server.api.context import context_of, in_time
from omlx_server.api.http import json_body
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.adapters import salted


@dataclass(frozen=True, slots=True)
class RequestPrefix:
    """A prompt with the salt of its blocks, and the `tenant`'s salt without an adapter."""

    name: str
    model: ServedModel
    tokens: tuple[int, ...]
    salt: bytes
    tenant: bytes


async def prefix_of(request: Request) -> RequestPrefix:
    """Return the prompt in the body of `request`. Raises as a chat completion."""
    context = context_of(request)
    chat = await json_body.read(request, ChatRequest, context.max_body_bytes)
    model = await context.models.find(chat.model, adapter=chat.adapter, preset=chat.preset)
    tokens = (await in_time(request, read_and_encode(chat, model, request))).tokens
    tenant = salt_of(request, chat.cache_salt)
    return RequestPrefix(chat.model, model, tuple(tokens), salted(tenant, model.adapter), tenant)
