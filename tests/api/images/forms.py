"""One conversation with images in the form of each API."""

import base64
from collections.abc import Sequence
from typing import Any

import httpx

from tests.api.harness import CHAT, Json, ServerProcess
from tests.images.files import encoded, noise

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
COUNT_MESSAGES, COUNT_RESPONSES = f"{MESSAGES}/count_tokens", f"{RESPONSES}/input_tokens"
Pieces = Sequence[str | bytes]
Told = Sequence[tuple[str, Pieces]]
"""Roles, and contents of texts and the files of images. What a tool gives follows a call of it."""

ONE, OTHER = (encoded(noise(48, 64, seed=seed), "PNG") for seed in (1, 2))
ASKED: Told = [("user", ["What is on ", ONE, "?"])]
SEVERAL: Told = [
    ("user", ["Compare ", ONE, " with ", OTHER]),
    ("assistant", ["They differ."]),
    ("user", [OTHER]),
]
WITH_RESULT: Told = [
    ("user", ["Look."]),
    ("call", []),
    ("tool", ["Here it is: ", ONE]),
]
LENGTH = 12


def url(file: bytes, media: str = "image/png") -> str:
    return f"data:{media};base64,{base64.b64encode(file).decode()}"


def image_part(file: bytes, detail: str | None = None) -> Json:
    given = {"url": url(file)} | ({"detail": detail} if detail else {})
    return {"type": "image_url", "image_url": given}


def image_block(file: bytes) -> Json:
    data = base64.b64encode(file).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return {"type": "image", "source": source}


def input_image(file: bytes) -> Json:
    return {"type": "input_image", "image_url": url(file), "detail": "auto"}


def text_part(text: str, kind: str = "text") -> Json:
    return {"type": kind, "text": text}


def chat(model: str, told: Told, **fields: Any) -> Json:
    messages: list[Json] = []
    for role, pieces in told:
        parts = [text_part(p) if isinstance(p, str) else image_part(p) for p in pieces]
        if role == "call":
            function = {"name": "look", "arguments": "{}"}
            calls = [{"id": "call_1", "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        elif role == "tool":
            messages.append({"role": role, "tool_call_id": "call_1", "content": parts})
        else:
            messages.append({"role": role, "content": parts})
    own = {"model": model, "messages": messages, "temperature": 0, "max_tokens": LENGTH}
    return {**own, "ignore_eos": True, **fields}


def messages(model: str, told: Told, **fields: Any) -> Json:
    turns: list[Json] = []
    for role, pieces in told:
        blocks = [text_part(p) if isinstance(p, str) else image_block(p) for p in pieces]
        if role == "call":
            use = {"type": "tool_use", "id": "call_1", "name": "look", "input": {}}
            turns.append({"role": "assistant", "content": [use]})
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": "call_1", "content": blocks}
            turns.append({"role": "user", "content": [result]})
        else:
            turns.append({"role": role, "content": blocks})
    own = {"model": model, "messages": turns, "temperature": 0, "max_tokens": LENGTH}
    return {**own, "ignore_eos": True, **fields}


def responses(model: str, told: Told, **fields: Any) -> Json:
    items: list[Json] = []
    for role, pieces in told:
        kind = "output_text" if role == "assistant" else "input_text"
        parts = [text_part(p, kind) if isinstance(p, str) else input_image(p) for p in pieces]
        if role == "call":
            call = {"call_id": "call_1", "name": "look", "arguments": "{}"}
            items.append({"type": "function_call", **call})
        elif role == "tool":
            output = {"type": "function_call_output", "call_id": "call_1", "output": parts}
            items.append(output)
        else:
            items.append({"role": role, "content": parts})
    own = {"model": model, "input": items, "temperature": 0, "max_output_tokens": LENGTH}
    return {**own, "ignore_eos": True, **fields}


def post(server: ServerProcess, path: str, body: Json) -> httpx.Response:
    return server.http.post(f"{server.url}{path}", json=body)


def answered(server: ServerProcess, path: str, body: Json) -> Json:
    response = post(server, path, body)
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


def by_chat(server: ServerProcess, model: str, told: Told, **fields: Any) -> tuple[str, int]:
    """The text of an answer, and how many tokens its prompt has."""
    answer = answered(server, CHAT, chat(model, told, **fields))
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def with_logprobs(server: ServerProcess, model: str, told: Told) -> Json:
    return answered(server, CHAT, chat(model, told, logprobs=True, top_logprobs=5))


def first_logprobs(answer: Json) -> tuple[float, ...]:
    """The log-probabilities of the likeliest first tokens: of images that differ, a tiny model may
    say the same, but it is not as sure of it."""
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return tuple(one["logprob"] for one in top)


def by_messages(server: ServerProcess, model: str, told: Told) -> tuple[str, int]:
    answer = answered(server, MESSAGES, messages(model, told))
    usage = answer["usage"]
    read = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
    return "".join(block["text"] for block in answer["content"]), read


def by_responses(server: ServerProcess, model: str, told: Told) -> tuple[str, int]:
    answer = answered(server, RESPONSES, responses(model, told))
    return text_of(answer), answer["usage"]["input_tokens"]


def text_of(answer: Json) -> str:
    """The text of a response."""
    items = [item for item in answer["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in items for part in item["content"])
