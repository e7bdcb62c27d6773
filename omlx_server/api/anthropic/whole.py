"""A whole message out of the events that would have told it. Owned by one answer."""

from collections.abc import Iterable

import orjson

from omlx_server.api.anthropic.shapes import Json

_GROWING = ("text", "thinking", "signature")


def assembled(events: Iterable[Json]) -> Json:
    """What a client gets that puts the stream of them together."""
    message: Json = {}
    arguments = ""
    for event in events:
        match event["type"]:
            case "message_start":
                message = {**event["message"], "content": []}
            case "content_block_start":
                message["content"].append(dict(event["content_block"]))
                arguments = ""
            case "content_block_delta":
                arguments += event["delta"].get("partial_json", "")
                _grow(message["content"][-1], event["delta"])
            case "content_block_stop" if arguments:
                # As the text that it is: reading it would refuse what JSON allows, such as 1e999.
                message["content"][-1]["input"] = orjson.Fragment(arguments)
            case "message_delta":
                message |= {**event["delta"], "usage": {**message["usage"], **event["usage"]}}
    return message


def _grow(block: Json, delta: Json) -> None:
    for field in _GROWING:
        if field in delta:
            block[field] += delta[field]
