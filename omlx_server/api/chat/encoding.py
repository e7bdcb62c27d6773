"""Makes the prompt of a chat, off the asyncio thread. Every route that needs a prompt goes through
here."""

from fastapi import Request

from omlx_server.api.chat import prompt
from omlx_server.api.chat.images import ChatImages, image_turns, read_images
from omlx_server.api.chat.prompt import ChatPrompt
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.context import ApiContext, context_of
from omlx_server.api.models.served_model import ServedModel


async def read_and_encoded(chat: ChatRequest, model: ServedModel, request: Request) -> ChatPrompt:
    """The prompt of the chat in an HTTP request, for which its images are read. Raises what
    `read_images` and `encoded` raise."""
    images = await read_images(chat, model, image_turns(request))
    return await encoded(chat, model, images, context_of(request))


async def encoded(
    chat: ChatRequest, model: ServedModel, images: ChatImages | None, context: ApiContext
) -> ChatPrompt:
    """The prompt of a chat whose `images` have been read. Raises what `prompt.encode` raises."""
    size, beside = prompt.size_of(chat), images.nbytes if images else 0
    return await context.threads.run(prompt.encode, chat, model, images, size=size, beside=beside)
