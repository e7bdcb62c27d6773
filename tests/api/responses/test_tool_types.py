"""Custom tools and namespaces in responses, whole, streamed and in chains."""

import json
import re
from typing import Any

import pytest
from openai import OpenAI

from tests.api.harness import ServerProcess, assert_envelope
from tests.api.responses.asking import ask, ask_streaming, body, get, post, without_names
from tests.api.tool_types import LARK, LARK_TEXT, RECURSIVE, REGEX

ECHO: dict[str, Any] = {"type": "function", "name": "echo", "parameters": {"type": "object"}}
CITY: dict[str, Any] = {
    "type": "function",
    "name": "city",
    "description": "Finds it.",
    "parameters": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 4}},
        "required": ["name"],
        "additionalProperties": False,
    },
}
WEATHER: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__weather",
    "description": "The weather",
    "tools": [CITY, {**CITY, "name": "echo"}],
}
CALLS: dict[str, Any] = {
    "temperature": 2,
    "parallel_tool_calls": False,
    "max_output_tokens": 400,
    "ignore_eos": None,
}


def custom(syntax: str = "", definition: str = "", name: str = "shell") -> dict[str, Any]:
    fields: dict[str, Any] = {"type": "custom", "name": name, "description": "Runs it."}
    if syntax:
        fields["format"] = {"type": "grammar", "syntax": syntax, "definition": definition}
    return fields


def called(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    """The only call of a response, which streams as it is."""
    fields = {**CALLS, **fields}
    whole, events = ask(server, **fields), ask_streaming(server, **fields)
    last = events[-1]["response"]
    assert without_names(whole)["output"] == without_names(last)["output"]
    assert whole["status"] == "completed"
    item: dict[str, Any]
    (item,) = last["output"]
    added, *rest = [event for event in events if "item_id" in event or "item" in event]
    text = "input" if item["type"] == "custom_tool_call" else "arguments"
    kind = f"response.{item['type']}_{text}"
    assert added["item"] == {**item, text: "", "status": "in_progress"}
    *deltas, done, closed = rest
    assert {event["type"] for event in deltas} == {f"{kind}.delta"}
    assert "".join(event["delta"] for event in deltas) == item[text] == done[text]
    assert (done["type"], closed["item"]) == (f"{kind}.done", item)
    return item


@pytest.mark.parametrize("seed", range(2))
def test_the_text_of_a_custom_call_matches_its_grammar(tiny: ServerProcess, seed: int) -> None:
    choice = {"type": "custom", "name": "shell"}
    item = called(tiny, tools=[ECHO, custom("regex", REGEX)], tool_choice=choice, seed=seed)
    assert item["id"].startswith("ctc_") and item["name"] == "shell"
    assert re.fullmatch(REGEX, item["input"])
    item = called(tiny, tools=[custom("lark", LARK)], tool_choice="required", seed=seed)
    assert LARK_TEXT.fullmatch(item["input"])


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "city"},
        {"type": "function", "name": "city", "namespace": "mcp__weather"},
        {"type": "function", "name": "mcp__weather__city"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "city", "namespace": "mcp__weather"}],
        },
    ],
)
def test_a_call_names_its_namespace_apart(tiny: ServerProcess, choice: Any) -> None:
    item = called(tiny, tools=[ECHO, WEATHER], tool_choice=choice, seed=3)
    assert (item["type"], item["namespace"]) == ("function_call", "mcp__weather")
    assert item["name"] == "city"


def test_names_that_are_alike_stay_apart(tiny: ServerProcess) -> None:
    """A namespace or a name may have the separator in it."""
    space = {"type": "namespace", "name": "a", "tools": [{**CITY, "name": "b__c"}]}
    other = {"type": "namespace", "name": "a__b", "tools": [custom(name="c")]}
    alone = {**CITY, "name": "a__b__c"}
    tools = [space, other, alone]
    expected = [("a", "b__c"), ("a__b", "c"), (None, "a__b__c")]
    for namespace, name in expected:
        kind = "custom" if name == "c" else "function"
        choice = {"type": kind, "name": name, "namespace": namespace}
        item = called(tiny, tools=tools, tool_choice=choice, seed=1)
        assert (item.get("namespace"), item["name"]) == (namespace, name)


def test_a_whole_namespace_may_be_allowed(tiny: ServerProcess) -> None:
    allowed = [{"type": "namespace", "name": "mcp__weather"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    for seed in range(3):
        found = ask(tiny, **CALLS, tools=[ECHO, WEATHER], tool_choice=choice, seed=seed)
        assert [item["namespace"] for item in found["output"]] == ["mcp__weather"]


def test_calls_go_on_from_a_stored_response(tiny: ServerProcess) -> None:
    """By its id or by hand, the model sees the same."""
    space = {**WEATHER, "tools": [CITY, custom("regex", REGEX)]}
    tools: dict[str, Any] = {"tools": [ECHO, space]}
    allowed = [{"type": "custom", "name": "shell", "namespace": "mcp__weather"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    first = ask(tiny, **CALLS, **tools, tool_choice=choice)
    (call,) = first["output"]
    assert (call["type"], call["namespace"]) == ("custom_tool_call", "mcp__weather")
    assert get(tiny, first["id"]).json() == first
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done"}
    chained = ask(tiny, input=[output], previous_response_id=first["id"], **tools)
    said = [{"role": "user", "content": "Tell me a story."}]
    by_hand = ask(tiny, input=[*said, call, output], **tools, store=False)
    assert chained["usage"]["input_tokens"] == by_hand["usage"]["input_tokens"]
    items = get(tiny, f"{chained['id']}/input_items?order=asc").json()["data"]
    assert items[1] == call
    function = {
        "type": "function_call",
        "call_id": call["call_id"],
        "name": "mcp__weather__shell",
        "arguments": '{"input": ' + json.dumps(call["input"], ensure_ascii=False) + "}",
    }
    result = {**output, "type": "function_call_output"}
    joined = ask(tiny, input=[*said, function, result], **tools, store=False)
    assert joined["usage"]["input_tokens"] == by_hand["usage"]["input_tokens"]
    compact = post(tiny, {**body(tiny, **tools), "previous_response_id": chained["id"]}, COMPACT)
    assert compact.status_code == 200, compact.text


COMPACT = "/v1/responses/compact"
TOKENS = "/v1/responses/input_tokens"


def test_what_is_offered_is_told_again(tiny: ServerProcess) -> None:
    tools = [ECHO, custom(), custom("lark", LARK, "edit"), {**WEATHER, "tools": [CITY]}]
    space = {**WEATHER, "tools": [CITY, {"type": "web_search"}]}
    found = ask(tiny, tools=[*tools[:3], space], tool_choice="none")["tools"]
    kept = [{key: value for key, value in tool.items() if value is not None} for tool in found]
    inner = [{k: v for k, v in t.items() if v is not None} for t in kept[-1]["tools"]]
    assert [*kept[:-1], {**kept[-1], "tools": inner}] == [
        ECHO,
        {**custom(), "format": {"type": "text"}},
        *tools[2:],
    ]


def test_what_is_left_out_is_told(tiny: ServerProcess) -> None:
    """In a header of every answer, and in the log."""
    secret = "A private text"
    tools = [
        {"type": "web_search"},
        {"type": "image_generation"},
        {"type": secret},
        {**WEATHER, "tools": [{"type": "computer"}]},
        custom("lark", RECURSIVE),
    ]
    said = [{"role": "user", "content": "Hi"}, {"type": "web_search_call"}]
    left = "an odd type, computer, image_generation, web_search, web_search_call"
    told = f"left out, as this server can't do it: {left}"
    shown = "the Lark grammar of tools.0 is shown to the model, but not enforced"
    for path in ("/v1/responses", COMPACT, TOKENS):
        for stream in (False, True):
            fields = {**body(tiny, input=said, tools=tools), "stream": stream}
            answer = post(tiny, fields, path)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-omlx-warnings"] == f"{told}; {shown}"
    assert told in tiny.log and secret not in tiny.log
    assert "x-omlx-warnings" not in post(tiny, body(tiny, tools=[ECHO, WEATHER])).headers


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "custom"}]},
        {"tools": [{"type": "custom", "name": "a", "format": {"type": "grammar"}}]},
        {"tools": [{"type": "namespace", "name": "a"}]},
        {"tools": [{"type": "namespace", "name": "a", "tools": [ECHO, ECHO]}]},
        {"tools": [custom("lark", "start: nothing")], "tool_choice": "required"},
        {"tools": [ECHO], "tool_choice": {"type": "custom", "name": "shell"}},
        {"tools": [ECHO], "tool_choice": {"type": "web_search"}},
    ],
)
def test_what_can_not_be_is_refused(tiny: ServerProcess, fields: dict[str, Any]) -> None:
    param = assert_envelope(post(tiny, body(tiny, **fields)), 400)["param"]
    assert param.partition(".")[0] in fields


def test_the_package_streams_both_kinds(tiny: ServerProcess) -> None:
    tools: Any = [custom("lark", LARK), {**WEATHER, "tools": [CITY]}]
    url = f"{tiny.url}/v1"
    found: set[tuple[str, str | None]] = set()
    with OpenAI(base_url=url, api_key="x", _strict_response_validation=True) as client:
        for seed in range(6):
            with client.responses.stream(
                model=tiny.model,
                input="Hi",
                tools=tools,
                tool_choice="required",
                parallel_tool_calls=False,
                extra_body={"seed": seed},
            ) as stream:
                (item,) = stream.get_final_response().output
            assert item.type in ("function_call", "custom_tool_call")
            found.add((item.type, item.namespace))
    assert found == {("custom_tool_call", None), ("function_call", "mcp__weather")}
