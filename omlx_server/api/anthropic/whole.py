"""A whole message out of the events that would have told it. Owned by one answer."""

from collections.abc import Iterable

import orjson

from omlx_server.api.anthropic.answers import (
    AssistantTurn,
    ContentBlock,
    ContentDelta,
    MessageEvent,
)


def assembled(events: Iterable[MessageEvent]) -> AssistantTurn:
    """What a client gets that puts the stream of them together."""
    start, *rest = events
    assert start["type"] == "message_start"
    content: list[ContentBlock] = []
    message: AssistantTurn = {**start["message"], "content": content}
    arguments = ""
    for event in rest:
        if event["type"] == "content_block_start":
            content.append(event["content_block"].copy())
            arguments = ""
        elif event["type"] == "content_block_delta":
            arguments = _grow(content[-1], event["delta"], arguments)
        elif event["type"] == "message_delta":
            usage = message["usage"]
            message = {**message, **event["delta"], "usage": {**usage, **event["usage"]}}
    return message


def _grow(block: ContentBlock, delta: ContentDelta, arguments: str) -> str:
    """The text of the block's arguments by then."""
    if block["type"] == "text" and delta["type"] == "text_delta":
        block["text"] += delta["text"]
    elif block["type"] == "thinking" and delta["type"] == "thinking_delta":
        block["thinking"] += delta["thinking"]
    elif block["type"] == "thinking" and delta["type"] == "signature_delta":
        block["signature"] += delta["signature"]
    elif block["type"] == "tool_use" and delta["type"] == "input_json_delta":
        arguments += delta["partial_json"]
        # As the text that it is: reading it would refuse what JSON allows, such as 1e999.
        block["input"] = orjson.Fragment(arguments)
    return arguments
