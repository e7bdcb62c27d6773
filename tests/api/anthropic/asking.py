"""What tests ask of /v1/messages over plain HTTP; every answer is judged by the package's types."""

from typing import Any

import httpx
import orjson

from tests.api.anthropic import strict
from tests.api.harness import MARKER, ServerProcess

Json = dict[str, Any]

PATH = "/v1/messages"
COUNT = f"{PATH}/count_tokens"
PING = {"type": "ping"}


def body(content: Any = "Tell me a story.", **fields: Any) -> Json:
    """Greedy and of exact length, unless the fields say otherwise."""
    messages = [{"role": "user", "content": content}]
    greedy = {"temperature": 0, "ignore_eos": True}
    return {"model": "org/tiny", "max_tokens": 24, "messages": messages, **greedy, **fields}


def post(server: ServerProcess, fields: Json, path: str = PATH, **headers: str) -> httpx.Response:
    return server.http.post(server.url + path, json=fields, headers=headers)


def whole(server: ServerProcess, fields: Json) -> Json:
    response = post(server, fields)
    assert response.status_code == 200, response.text
    message: Json = response.json()
    strict.message(message)
    return message


def streamed(server: ServerProcess, fields: Json) -> list[Json]:
    """All events but pings."""
    response = post(server, {**fields, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return [event for event in events(response.text) if event != PING]


def events(text: str) -> list[Json]:
    """Of a whole stream, each checked for its name and its type."""
    result = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event != PING:
            strict.event(event)
        result.append(event)
    return result


def count(server: ServerProcess, fields: Json) -> int:
    response = post(server, fields, COUNT)
    assert response.status_code == 200, response.text
    (found,) = response.json().values()
    return int(found)


def text_of(message: Json, kind: str = "text") -> str:
    return "".join(block[kind] for block in message["content"] if block["type"] == kind)


def refused(response: httpx.Response, status: int, kind: str) -> str:
    """Anthropic's error shape, exactly. Returns the message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    told = response.json()
    assert set(told) == {"type", "error", "request_id"} and told["type"] == "error"
    assert told["request_id"] == response.headers["request-id"]
    assert set(told["error"]) == {"type", "message"} and told["error"]["type"] == kind
    assert MARKER not in response.text, "the input was echoed"
    message: str = told["error"]["message"]
    assert message
    return message
