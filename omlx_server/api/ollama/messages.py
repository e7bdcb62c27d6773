"""Converts the messages of an Ollama chat into those of a chat. Pure.

Most clients drop the ids of calls. A call without one gets an id by its place in the conversation,
so the next request has the same prompt.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from omlx_server.api.ollama.request import GivenCall, GivenMessage
from omlx_server.errors import BadRequest
from omlx_server.images.source import url_of_image_block

Json = dict[str, Any]
Waiting = list[tuple[str, str]]
"""The ids and names of calls that have no result yet, the oldest first."""


def chat_messages(messages: Sequence[GivenMessage]) -> list[Json]:
    """Return the chat's messages. Raises BadRequest for an image that is not base64."""
    shapes: list[Json] = []
    waiting: Waiting = []
    calls = 0
    for index, message in enumerate(messages):
        shape = _message(message, f"messages.{index}")
        if message.role == "tool":
            shape |= _call_of_result(message, waiting)
        elif message.tool_calls:
            shape["tool_calls"] = [
                _call(one, calls + n) for n, one in enumerate(message.tool_calls)
            ]
            waiting += [(one["id"], one["function"]["name"]) for one in shape["tool_calls"]]
            calls += len(message.tool_calls)
        shapes.append(shape)
    return shapes


def content_of(text: str, images: Iterable[str], param: str) -> str | list[Json]:
    """Return the text, or images and then the text. Raises as `chat_messages`."""
    parts = [_image(data, f"{param}.images.{index}") for index, data in enumerate(images)]
    return [*parts, {"type": "text", "text": text}] if parts else text


def image_chars(messages: Iterable[GivenMessage]) -> int:
    return sum(len(data) for message in messages for data in message.images or ())


def _message(message: GivenMessage, param: str) -> Json:
    content = content_of(message.content or "", message.images or (), param)
    shape: Json = {"role": message.role, "content": content}
    if message.thinking:
        shape["reasoning_content"] = message.thinking
    return shape


def _call_of_result(message: GivenMessage, waiting: Waiting) -> Json:
    """Return the fields that link a result to its call, and remove that call from `waiting`."""
    by_name = [call for call in waiting if call[1] == message.tool_name] or waiting
    by_id = [call for call in waiting if call[0] == message.tool_call_id]
    call = next(iter(by_id or by_name), (message.tool_call_id or _id_of(0), ""))
    if call in waiting:
        waiting.remove(call)
    name = message.tool_name or call[1]
    shape = {"tool_call_id": message.tool_call_id or call[0]}
    return {**shape, "name": name} if name else shape


def _call(call: GivenCall, number: int) -> Json:
    arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or _id_of(number), "type": "function", "function": function}


def _id_of(number: int) -> str:
    """Return nine letters and digits: Mistral's templates take no other ids."""
    return f"call{number:05d}"


def _image(data: str, param: str) -> Json:
    if data.startswith("data:"):
        raise BadRequest("images must be base64, without data: before it", param=param)
    source = {"type": "base64", "data": data}
    url = url_of_image_block({"source": source}, param=param)
    return {"type": "image_url", "image_url": url}
