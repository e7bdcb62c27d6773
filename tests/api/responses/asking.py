"""The Responses API over HTTP, each answer judged by the openai package's types."""

from typing import Any

import httpx
import orjson

from tests.api.harness import Json, ServerProcess
from tests.api.responses import judge

RESPONSES = "/v1/responses"


def body(server: ServerProcess, **fields: Any) -> Json:
    """Greedy, and of exact length."""
    exact = {"temperature": 0, "max_output_tokens": 16, "ignore_eos": True}
    return {"model": server.model, "input": "Tell me a story.", **exact, **fields}


def post(
    server: ServerProcess, fields: Json, path: str = RESPONSES, key: str = "x"
) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return server.http.post(f"{server.url}{path}", json=fields, headers=headers)


def get(server: ServerProcess, path: str, key: str = "x") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return server.http.get(f"{server.url}{RESPONSES}/{path}", headers=headers)


def ask(server: ServerProcess, key: str = "x", **fields: Any) -> Json:
    """A response in one piece."""
    answer = post(server, body(server, **fields), key=key)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    judge.response(found)
    return found


def ask_streaming(server: ServerProcess, **fields: Any) -> list[Json]:
    """The events of a response."""
    answer = post(server, body(server, stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events(answer.text)


def events(text: str) -> list[Json]:
    """Those of a whole stream, in their order and numbered without a gap."""
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n")
            event = orjson.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            judge.event(event)
            found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def text_of(response: Json) -> str:
    """What its messages say."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


def without_names(response: Json) -> Json:
    """A response without what no two of them share."""
    items = [{**item, "id": "", "call_id": ""} for item in response["output"]]
    return {**response, "id": "", "created_at": 0, "completed_at": 0, "output": items}
