"""The official openai and anthropic packages send images in each form, with strict validation."""

import json
from collections.abc import Iterator
from typing import Any

from anthropic import Anthropic
from openai import OpenAI

from tests.api.harness import ServerProcess
from tests.campaigns.image_requests import anthropic_image, chat_image, data_url
from tests.images.files import encoded, noise

_IMAGE = encoded(noise(48, 64, seed=99), "PNG")
_WHAT = "What is this?"
_LENGTH = 24
_GREEDY: dict[str, Any] = {"extra_body": {"ignore_eos": True, "temperature": 0}}
_SCHEMA = {
    "type": "object",
    "properties": {"seen": {"type": "boolean"}, "kind": {"enum": ["cat", "noise"]}},
    "required": ["seen", "kind"],
    "additionalProperties": False,
}


def package_problems(server: ServerProcess) -> Iterator[str]:
    """What the packages get that is not as it should be. They raise for an answer of another type,
    and for one with an error."""
    common: dict[str, Any] = {
        "api_key": "x",
        "max_retries": 0,
        "_strict_response_validation": True,
    }
    with (
        OpenAI(base_url=f"{server.url}/v1", **common) as openai,
        Anthropic(base_url=server.url, **common) as anthropic,
    ):
        texts = dict(_texts(openai, anthropic, server.model))
        if len(set(texts.values())) != 1 or not all(texts.values()):
            yield f"the same image and text have several answers: {texts}"
        calls = dict(_calls(openai, anthropic, server.model))
        if len(calls) != 3:
            yield f"a call is missing: {calls}"
        for name, found in calls.items():
            if set(found) != {"seen", "kind"} or found["kind"] not in ("cat", "noise"):
                yield f"{name} beside an image: {found}"
        text = _after_a_result(anthropic, server.model)
        if not text:
            yield "an image in a tool result: no answer"


def _texts(openai: OpenAI, anthropic: Anthropic, model: str) -> Iterator[tuple[str, str]]:
    """The greedy answers to one image with one text, in each form, whole and streamed."""
    url = data_url(_IMAGE)
    text = {"type": "text", "text": _WHAT}
    for name, part in (("an object", {"url": url, "detail": "auto"}), ("a string", url)):
        chat: dict[str, Any] = {
            "model": model,
            "max_tokens": _LENGTH,
            "messages": [{"role": "user", "content": [chat_image(part), text]}],
            **_GREEDY,
        }
        answer = openai.chat.completions.create(**chat)
        yield f"image_url, {name}", answer.choices[0].message.content or ""
        chunks = openai.chat.completions.create(stream=True, **chat)
        pieces = [c.delta.content or "" for chunk in chunks for c in chunk.choices]
        yield f"image_url, {name}, streamed", "".join(pieces)
    asked = _of_responses(model)
    yield "input_image", openai.responses.create(**asked).output_text
    events = openai.responses.create(stream=True, **asked)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    yield "input_image, streamed", "".join(deltas)
    told = _of_messages(model, [anthropic_image(_IMAGE), text])
    yield "an image block", _text_of(anthropic.messages.create(**told))
    with anthropic.messages.stream(**told) as stream:
        yield "an image block, streamed", stream.get_final_text()


def _calls(
    openai: OpenAI, anthropic: Anthropic, model: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects that grammars force beside an image: by a schema, by a function, by a tool."""
    parts = [chat_image({"url": data_url(_IMAGE)}), {"type": "text", "text": _WHAT}]
    chat: dict[str, Any] = {
        "model": model,
        "max_tokens": 200,
        "temperature": 0,
        "messages": [{"role": "user", "content": parts}],
    }
    schema = {"name": "seen", "schema": _SCHEMA, "strict": True}
    form: Any = {"type": "json_schema", "json_schema": schema}
    answer = openai.chat.completions.create(response_format=form, **chat)
    yield "a JSON schema", json.loads(answer.choices[0].message.content or "{}")
    function = {"name": "tell", "parameters": _SCHEMA}
    tools: Any = [{"type": "function", "function": function}]
    answer = openai.chat.completions.create(tools=tools, tool_choice="required", **chat)
    for call in answer.choices[0].message.tool_calls or ():
        yield "a function", json.loads(call.function.arguments)
    asked = _of_messages(model, [anthropic_image(_IMAGE)]) | {
        "max_tokens": 200,
        "tools": [{"name": "tell", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "any"},
    }
    for block in anthropic.messages.create(**asked).content:
        if block.type == "tool_use":
            yield "a tool", dict(block.input)


def _after_a_result(anthropic: Anthropic, model: str) -> str:
    """The answer to an image that a tool has given."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "Here it is."}, anthropic_image(_IMAGE)],
    }
    asked = _of_messages(model, [{"type": "text", "text": "Look."}])
    asked["messages"] += [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    asked["tools"] = [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]
    asked["tool_choice"] = {"type": "none"}
    return _text_of(anthropic.messages.create(**asked))


def _of_responses(model: str) -> dict[str, Any]:
    parts = [
        {"type": "input_image", "image_url": data_url(_IMAGE), "detail": "auto"},
        {"type": "input_text", "text": _WHAT},
    ]
    messages = [{"role": "user", "content": parts}]
    return {"model": model, "input": messages, "max_output_tokens": _LENGTH, **_GREEDY}


def _of_messages(model: str, content: list[Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": model, "messages": messages, "max_tokens": _LENGTH, **_GREEDY}


def _text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")
