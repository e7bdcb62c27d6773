"""Which prompt a call about the prefix cache means: it has the body of a chat completion."""

from dataclasses import dataclass
from functools import partial

from fastapi import Request

from omlx_server.api.access.tenant import salt_of
from omlx_server.api.chat import prompt
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.context import context_of
from omlx_server.api.http import body
from omlx_server.api.models.served import ServedModel


@dataclass(frozen=True, slots=True)
class Prefix:
    """`name` is what the client calls the model."""

    name: str
    model: ServedModel
    tokens: tuple[int, ...]
    salt: bytes


async def read(request: Request) -> Prefix:
    """Raises what a chat completion would for such a body."""
    context = context_of(request)
    chat = await body.read(request, ChatRequest, context.max_body_bytes)
    model = await context.models.find(chat.model)
    encoded = await context.threads.run(partial(prompt.encode, chat, model))
    return Prefix(chat.model, model, tuple(encoded.tokens), salt_of(request, chat.cache_salt))
