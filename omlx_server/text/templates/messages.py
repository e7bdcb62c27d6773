"""Messages as clients send them, brought into the form that chat templates expect. Pure.

Nothing of the client's values is changed in place.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from omlx_server.errors import BadRequest

Message = dict[str, Any]

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def prepared(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Text parts are joined, an assistant's null content is "", other nulls are left out."""
    return [_prepared(message) for message in messages]


def with_parsed_arguments(messages: Sequence[Message]) -> list[Message]:
    """Tool calls whose arguments are objects: OpenAI sends them as JSON text.

    Most templates write them with `tojson`, which would quote a text once more.
    """
    return [_with_parsed_arguments(message) for message in messages]


def _prepared(message: Mapping[str, Any]) -> Message:
    if not isinstance(message, Mapping):
        raise BadRequest("a message must be an object", param="messages")
    content = message.get("content")
    ready = {key: value for key, value in message.items() if value is not None}
    if isinstance(content, list | tuple):
        ready["content"] = "".join(_part_text(part) for part in content)
    elif content is None and message.get("role") == "assistant":
        ready["content"] = ""
    reasoning = next((ready[field] for field in _REASONING_FIELDS if field in ready), None)
    if reasoning is not None:
        # As transformers does: gpt-oss templates read `thinking`, all others the long name.
        ready = {"thinking": reasoning, **ready, "reasoning_content": reasoning}
    return ready


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise BadRequest("only text parts are understood by this model", param="messages")
    return text


def _with_parsed_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return message
    return {**message, "tool_calls": [_parsed_call(call) for call in calls]}


def _parsed_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        parsed = json.loads(function["arguments"])
    except ValueError:
        return call
    if not isinstance(parsed, dict):
        return call
    return {**call, "function": {**function, "arguments": parsed}}
