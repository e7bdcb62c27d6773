"""Tools and Codex's requests, on the starter model."""

from typing import Any

import orjson
from openai import OpenAI

from tests.api.harness import ServerProcess
from tests.api.responses.asking import ask, ask_streaming, body, post, without_names
from tests.api.tool_types import PATCH

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CODEX: dict[str, Any] = {
    "instructions": "You are Codex, a coding agent. " * 20,
    "tools": [
        WEATHER,
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edits files. This is a FREEFORM tool.",
            "format": {"type": "grammar", "syntax": "lark", "definition": PATCH},
        },
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "mcp__x", "description": "x", "tools": [WEATHER]},
        {"type": "tool_of_the_future", "anything": [1]},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-thread",
    "client_metadata": {"x-codex-installation-id": "i"},
    "text": {"verbosity": "low"},
    "service_tier": "auto",
}


def codex_input() -> list[dict[str, Any]]:
    def message(role: str, kind: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    return [
        message("developer", "input_text", "<permissions>read-only</permissions>"),
        message("user", "input_text", "<environment_context>/repo</environment_context>"),
        message("user", "input_text", "Weather in Paris?"),
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
        {
            "type": "function_call",
            "name": "get_weather",
            "arguments": '{"city":"Paris"}',
            "call_id": "call_1",
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "Rain, 12 degrees."},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
        message("user", "input_text", "Say it in one short sentence."),
    ]


def test_codex_is_answered(server: ServerProcess) -> None:
    fields = {**CODEX, "input": codex_input(), "ignore_eos": None}
    events = ask_streaming(server, **fields)
    last = events[-1]["response"]
    assert [tool["type"] for tool in last["tools"]] == ["function", "custom", "namespace"]
    assert last["prompt_cache_key"] == "0199-thread" and last["store"] is False
    again = ask(server, **fields)
    assert without_names(again)["output"] == without_names(last)["output"]
    count = post(server, {"model": server.model, **fields}, "/v1/responses/input_tokens").json()
    assert count["input_tokens"] == last["usage"]["input_tokens"]
    others = [tool for tool in CODEX["tools"] if tool is not WEATHER]
    fewer = {"model": server.model, **fields, "tools": others}
    bare = post(server, fewer, "/v1/responses/input_tokens").json()
    assert bare["input_tokens"] < count["input_tokens"]


def call_of(response: dict[str, Any]) -> dict[str, Any]:
    item: dict[str, Any] = response["output"][-1]
    assert (item["type"], item["name"]) == ("function_call", "get_weather")
    assert set(orjson.loads(item["arguments"])) == {"city"}
    return item


def test_a_function_is_called_and_its_result_is_read(server: ServerProcess) -> None:
    asked: dict[str, Any] = {
        "input": "What is the weather in Paris?",
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "parallel_tool_calls": False,
        "max_output_tokens": 200,
        "ignore_eos": None,
    }
    events = ask_streaming(server, **asked)
    whole = ask(server, **asked)
    assert without_names(events[-1]["response"])["output"] == without_names(whole)["output"]
    assert whole["status"] == "completed"
    call = call_of(whole)
    kind = "response.function_call_arguments.delta"
    deltas = [event["delta"] for event in events if event["type"] == kind]
    assert len(deltas) > 1 and "".join(deltas) == call["arguments"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain"}
    chained = ask(server, input=[result], previous_response_id=whole["id"], tools=[WEATHER])
    spelled = [{"role": "user", "content": asked["input"]}, *whole["output"], result]
    by_hand = ask(server, input=spelled, tools=[WEATHER], store=False)
    assert without_names(chained)["output"] == without_names(by_hand)["output"]
    assert chained["usage"]["input_tokens"] == by_hand["usage"]["input_tokens"]


def test_the_package_streams_calls(server: ServerProcess) -> None:
    tools: Any = [WEATHER]
    with (
        OpenAI(
            base_url=f"{server.url}/v1", api_key="x", _strict_response_validation=True
        ) as client,
        client.responses.stream(
            model=server.model,
            input="What is the weather in Paris?",
            tools=tools,
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
        ) as stream,
    ):
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["function_call"]


def test_a_call_that_is_cut_is_incomplete(server: ServerProcess) -> None:
    found = ask(
        server, tools=[WEATHER], tool_choice="required", max_output_tokens=2, ignore_eos=None
    )
    assert found["status"] == "incomplete"
    assert body(server)["model"] == found["model"]
