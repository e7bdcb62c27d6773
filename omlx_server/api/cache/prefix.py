"""The prompt that a request about the prefix cache is about."""

from dataclasses import dataclass

from fastapi import Request

from omlx_server.api.access.tenant import salt_of
from omlx_server.api.chat.encoding import read_and_encoded
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.context import context_of, in_time
from omlx_server.api.http import json_body
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.adapters import salted


@dataclass(frozen=True, slots=True)
class RequestPrefix:
    """The prompt that a request is about, as token ids, and the salt of its blocks; `tenant` is the
    salt of its sender's blocks without an adapter. `name` is the model's name in it."""

    name: str
    model: ServedModel
    tokens: tuple[int, ...]
    salt: bytes
    tenant: bytes


async def prefix_of(request: Request) -> RequestPrefix:
    """The prompt in the body of `request`. Raises the errors that a chat completion with that body
    would raise while its prompt is made."""
    context = context_of(request)
    chat = await json_body.read(request, ChatRequest, context.max_body_bytes)
    model = await context.models.find(chat.model, adapter=chat.adapter, preset=chat.preset)
    tokens = (await in_time(request, read_and_encoded(chat, model, request))).tokens
    tenant = salt_of(request, chat.cache_salt)
    return RequestPrefix(chat.model, model, tuple(tokens), salted(tenant, model.adapter), tenant)
