"""Tools over HTTP, judged by the openai package's own types."""

import json
from collections import defaultdict
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI

from tests.api.harness import ServerProcess, assert_envelope, stream_events

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(name: str, parameters: dict[str, Any] | None = PARAMETERS, **fields: Any) -> Any:
    function = {"name": name, "description": f"What {name} does.", **fields}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


FORECAST = tool("forecast")
NOW = tool("now", NO_PARAMETERS)


STREAM = {"stream": True}


def ask(client: OpenAI, **fields: Any) -> Any:
    given = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "temperature": 2}
    return client.chat.completions.create(model="tiny", **{**given, **fields})


@pytest.mark.parametrize("seed", range(6))
def test_a_named_call_is_always_valid(client: OpenAI, seed: int) -> None:
    choice = {"type": "function", "function": {"name": "forecast"}}
    answer = ask(client, tools=[NOW, FORECAST], tool_choice=choice, seed=seed).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    assert call.type == "function" and call.function.name == "forecast" and call.id
    Draft202012Validator(PARAMETERS).validate(json.loads(call.function.arguments))


@pytest.mark.parametrize("seed", range(6))
def test_required_calls_are_always_valid(client: OpenAI, seed: int) -> None:
    answer = ask(client, tools=[NOW, FORECAST], tool_choice="required", seed=seed).choices[0]
    calls = answer.message.tool_calls
    if answer.finish_reason == "length":  # the last one was cut
        calls = (calls or [])[:-1]
    else:
        assert calls
    schemas = {"now": NO_PARAMETERS, "forecast": PARAMETERS}
    for call in calls:
        schema = schemas[call.function.name]
        Draft202012Validator(schema).validate(json.loads(call.function.arguments))
    assert len({call.id for call in calls}) == len(calls)
    assert answer.message.content is None


@pytest.mark.parametrize("seed", range(4))
def test_at_most_one_call_where_they_are_not_parallel(client: OpenAI, seed: int) -> None:
    answer = ask(
        client, tools=[NOW], tool_choice="required", parallel_tool_calls=False, seed=seed
    ).choices[0]
    assert len(answer.message.tool_calls) == 1 and answer.finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_a_stream_says_the_same_as_the_whole(client: OpenAI, choice: Any) -> None:
    asked = {"tools": [NOW, FORECAST], "tool_choice": choice, "seed": 3}
    whole = ask(client, **asked).choices[0]
    names: dict[int, str] = {}
    arguments: dict[int, str] = defaultdict(str)
    ids: list[str] = []
    finish = None
    for chunk in ask(client, stream=True, **asked):
        for part in chunk.choices[0].delta.tool_calls or []:
            if part.function.name is not None:
                assert part.index == len(names) and part.id and part.type == "function"
                names[part.index] = part.function.name
                ids.append(part.id)
            else:
                assert part.id is None
            arguments[part.index] += part.function.arguments
        finish = chunk.choices[0].finish_reason or finish
    told = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]
    assert [(names[i], arguments[i]) for i in sorted(names)] == told
    assert finish == whole.finish_reason and len(set(ids)) == len(ids)


def test_the_choice_can_be_limited(client: OpenAI) -> None:
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "now"}}],
        },
    }
    for seed in range(4):
        answer = ask(client, tools=[FORECAST, NOW], tool_choice=allowed, seed=seed).choices[0]
        assert {call.function.name for call in answer.message.tool_calls} == {"now"}


def test_tools_reach_the_prompt_of_a_template_without_them(tiny: ServerProcess) -> None:
    plain = tiny.chat("Hi", max_tokens=1)["usage"]["prompt_tokens"]
    for choice in ("auto", "none"):
        body = tiny.chat("Hi", max_tokens=1, tools=[FORECAST], tool_choice=choice)
        assert body["usage"]["prompt_tokens"] > plain + 50


def test_a_result_goes_back(tiny: ServerProcess) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    for tools in ([NOW], None):
        body = {"model": "tiny", "messages": messages, "max_tokens": 2, "tools": tools}
        assert tiny.post(body).status_code == 200


def turns(*cities: str) -> list[dict[str, Any]]:
    """Earlier turns that end in calls; the last one's is still to come."""
    messages: list[dict[str, Any]] = []
    for number, city in enumerate(cities):
        messages.append({"role": "user", "content": f"What is the weather in {city}?"})
        arguments = json.dumps({"city": city, "days": 1})
        function = {"name": "forecast", "arguments": arguments}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "sunny"})
        messages.append({"role": "assistant", "content": "It is sunny."})
    return [*messages, {"role": "user", "content": "What is the weather in Madrid?"}]


@pytest.mark.parametrize("strict", [False, True])
def test_the_starter_model_calls_by_itself(server: ServerProcess, strict: bool) -> None:
    """It does as it did in the turns before."""
    tools = [tool("forecast", strict=strict)]
    body = {
        "model": server.model,
        "messages": turns("Paris", "Rome", "Oslo", "Lima"),
        "tools": tools,
        "temperature": 0,
        "max_tokens": 60,
    }
    whole = server.post(body).json()["choices"][0]
    (call,) = whole["message"]["tool_calls"]
    assert whole["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "forecast"
    assert json.loads(call["function"]["arguments"])["city"] == "Madrid"
    deltas = [
        event["choices"][0]["delta"] for event in stream_events(server.post(body | STREAM).text)
    ]
    arguments = [
        part["function"]["arguments"] for delta in deltas for part in delta.get("tool_calls", [])
    ]
    assert "".join(arguments) == call["function"]["arguments"] and len(arguments) > 3


@pytest.mark.parametrize("seed", range(4))
def test_strict_functions_are_kept_to(client: OpenAI, seed: int) -> None:
    strict = tool("forecast", strict=True)
    answer = ask(client, tools=[strict], seed=seed).choices[0]
    calls = answer.message.tool_calls or []
    for call in calls[: -1 if answer.finish_reason == "length" else None]:
        Draft202012Validator(PARAMETERS).validate(json.loads(call.function.arguments))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", ["tiny", "thinker"])
def test_a_strict_function_changes_nothing_before_a_call(
    tiny: ServerProcess, thinker: ServerProcess, model: str, seed: int
) -> None:
    """Tokens and log-probabilities are those of an answer that may call nothing, and of which the
    prompt is the same. A random model opens no call by itself."""
    server, thinks = {"tiny": tiny, "thinker": thinker}[model], model == "thinker"
    asked: dict[str, Any] = {"tools": [tool("forecast", strict=True)], "ignore_eos": True}
    asked |= {"max_tokens": 60, "temperature": 1.0, "seed": seed, "logprobs": True}
    asked |= {"top_logprobs": 3, "thinking_budget": 8 if thinks else None}
    free, strict = (
        server.chat("Hi", **asked, tool_choice=choice)["choices"][0] for choice in ("none", "auto")
    )
    assert strict["message"] == free["message"]
    assert strict["finish_reason"] == "length"
    # The second one hits what the first has stored: its sums are in another order.
    for one, other in zip(strict["logprobs"]["content"], free["logprobs"]["content"], strict=True):
        assert one["token"] == other["token"]
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
    assert not thinks or (free["message"]["reasoning_content"] and free["message"]["content"])


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_in_a_format_or_a_call(client: OpenAI, seed: int) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = ask(client, tools=[NOW], response_format=form, seed=seed).choices[0]
    if answer.message.tool_calls:
        assert answer.message.tool_calls[0].function.name == "now"
    elif answer.finish_reason == "stop":
        Draft202012Validator(schema).validate(json.loads(answer.message.content))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": [NOW],
                "tool_choice": {"type": "function", "function": {"name": "unknown"}},
            },
            "tool_choice",
        ),
        ({"tools": [NOW, NOW]}, "tools"),
        (
            {"tools": [tool("f", {"type": "array"})], "tool_choice": "required"},
            "tools.0.function.parameters",
        ),
        (
            {"tools": [NOW, tool("f", {"not": {}}, strict=True)]},
            "tools.1.function.parameters",
        ),
        ({"tools": [NOW], "guided_regex": "a+"}, "guided_regex"),
    ],
)
def test_what_contradicts_itself_is_refused(
    tiny: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    error = assert_envelope(tiny.post(tiny.body("Hi", max_tokens=4, **fields)), 400)
    assert error["param"] is not None and error["param"].startswith(param)


def test_a_schema_that_a_free_call_can_not_be_kept_to_is_left_out(tiny: ServerProcess) -> None:
    odd = tool("f", {"type": "object", "properties": {"a": {"not": {"type": "string"}}}})
    assert tiny.chat("Hi", max_tokens=4, tools=[odd])["choices"]
    forced = tiny.chat("Hi", max_tokens=40, tools=[odd], tool_choice="required")
    assert forced["choices"][0]["finish_reason"] in ("length", "tool_calls")
