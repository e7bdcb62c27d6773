"""A request for a response as a request for a chat, and as the response's own echo."""

from typing import Any

import pytest
from pydantic import ValidationError

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.responses.answers import InputItem
from omlx_server.api.responses.chat_form import chat_request, renamed_params
from omlx_server.api.responses.items.items import ItemIds, stored_form
from omlx_server.api.responses.tool_names import ToolNames
from omlx_server.errors import BadRequest
from tests.api.responses import judge
from tests.api.responses.made import ID, asked, opening

FUNCTION = {
    "type": "function",
    "name": "f",
    "description": "d",
    "parameters": {"type": "object", "properties": {}},
    "strict": True,
}
GRAMMAR = {"syntax": "lark", "definition": 'start: "a"'}
CUSTOM = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", **GRAMMAR}}
SPACE = {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION, CUSTOM]}
OTHERS = [{"type": "web_search"}, {"type": "not_invented_yet", "name": 7}]


def chat(**fields: Any) -> ChatRequest:
    request = asked(**fields)
    known: dict[str, InputItem] = {}
    items = stored_form(request.input, ItemIds(ID), known.__getitem__)
    return chat_request(request, items, ToolNames(request.tools or ()))


def dumped(**fields: Any) -> dict[str, Any]:
    return chat(**fields).model_dump(exclude_none=True)


def test_limits_and_sampling() -> None:
    found = chat(max_output_tokens=5, temperature=0.5, top_p=0.4, seed=3, ignore_eos=True, n=2)
    assert (found.max_completion_tokens, found.temperature, found.top_p) == (5, 0.5, 0.4)
    assert (found.seed, found.ignore_eos, found.n) == (3, True, None)


def test_logprobs_are_asked_for_in_two_ways() -> None:
    assert chat().logprobs is None
    for fields, top in (
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"top_logprobs": 3}, 3),
    ):
        found = chat(**fields)
        assert (found.logprobs, found.top_logprobs) == (True, top)


def test_what_a_model_can_call_is_offered_and_other_tools_left_out() -> None:
    found = dumped(tools=[*OTHERS, FUNCTION, SPACE], parallel_tool_calls=False)
    function = {key: value for key, value in FUNCTION.items() if key != "type"}
    below = {**function, "name": "n__f", "description": "About n: d\n\nd"}
    form = {"type": "grammar", "grammar": GRAMMAR}
    assert found["tools"] == [
        {"type": "function", "function": function},
        {"type": "function", "function": below},
        {"type": "custom", "custom": {"name": "n__apply_patch", "format": form}},
    ]
    assert (found["tool_choice"], found["parallel_tool_calls"]) == ("auto", False)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(dumped(tools=OTHERS))


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, NAMED),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
            },
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}, "none"),
        ({"type": "custom", "name": "f"}, NAMED),
    ],
)
def test_tool_choices(choice: Any, expected: Any) -> None:
    assert dumped(tools=[FUNCTION], tool_choice=choice)["tool_choice"] == expected


def test_a_tool_that_must_be_called_but_is_not_there_is_left_to_be_refused() -> None:
    assert dumped(tools=OTHERS, tool_choice="required")["tool_choice"] == "required"
    named = dumped(tools=OTHERS, tool_choice={"type": "custom", "name": "f"})
    assert named["tool_choice"] == NAMED and "tools" not in named
    with pytest.raises(BadRequest):
        chat(tools=OTHERS, tool_choice={"type": "web_search"})


def test_formats() -> None:
    schema = {"type": "object"}
    given = {"type": "json_schema", "name": "s", "schema": schema, "strict": True}
    found = chat(text={"format": given}).model_dump()["response_format"]
    assert found["type"] == "json_schema"
    inner = {key: value for key, value in found["json_schema"].items() if value is not None}
    assert inner == {"name": "s", "schema": schema, "strict": True}
    found = chat(text={"format": {"type": "json_object"}}).model_dump()["response_format"]
    assert found["type"] == "json_object"
    with pytest.raises(BadRequest) as caught:
        chat(text={"format": {"type": "json_schema", "name": "s"}})
    assert caught.value.param == "text.format"


def test_reasoning_effort() -> None:
    assert chat(reasoning={"effort": "high", "summary": "auto"}).reasoning_effort == "high"


@pytest.mark.parametrize("given", [[], [{"type": "web_search_call"}], None])
def test_nothing_to_read_is_refused(given: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(input=given)
    assert caught.value.param == "input"


def test_errors_name_the_fields_of_a_response() -> None:
    names = {"messages.3.content": "input", "response_format": "text.format", "tools": "tools"}
    for inner, outer in names.items():
        with pytest.raises(BadRequest) as caught, renamed_params():
            raise BadRequest("wrong", param=inner)
        assert caught.value.param == outer


@pytest.mark.parametrize("field", ["background", "conversation", "prompt"])
def test_what_would_change_the_answer_is_refused(field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        asked(**{field: True}).check()
    assert caught.value.param == field
    asked(**{field: None}).check()


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 2.1},
        {"max_output_tokens": 0},
        {"top_logprobs": 21},
        {"metadata": {"a": 1}},
        {"metadata": {"k" * 65: "v"}},
        {"metadata": {str(i): "v" for i in range(17)}},
        {"reasoning": {"effort": "enormous"}},
        {"text": {"format": {"type": "xml"}}},
        {"tools": [{"name": "f"}]},
        {"tools": [{"type": "function"}]},
        {"tools": [{**FUNCTION, "parameters": "x"}]},
        {"tool_choice": "sometimes"},
        {"input": [{"role": "robot", "content": "x"}]},
        {"input": [{"role": "user"}]},
        {"input": [{"type": "function_call", "call_id": "c", "name": "f"}]},
        {"input": [{"type": 7}]},
        {"input": ["Hi"]},
        {"input": [None]},
        {"input": 7},
        {"stream": "yes"},
        {"store": 1},
    ],
)
def test_wrong_values_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        asked(**fields)


def test_the_package_knows_what_is_echoed() -> None:
    """As Codex asks, with all that this server has no use for."""
    request = asked(
        instructions="i",
        metadata={"a": "b"},
        max_output_tokens=9,
        max_tool_calls=2,
        tools=[*OTHERS, FUNCTION, CUSTOM, SPACE],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        text={
            "verbosity": "low",
            "format": {"type": "json_schema", "name": "s", "schema": {}, "strict": None},
        },
        truncation="auto",
        temperature=0.5,
        prompt_cache_key="k",
        safety_identifier="s",
        user="u",
        service_tier="auto",
        store=False,
        client_metadata={"x": "y"},
        context_management=[{"type": "compaction"}],
    )
    found = judge.response(opening(request, is_stored=False))
    assert [tool.type for tool in found.tools] == ["function", "custom", "namespace"]
    assert (found.temperature, found.top_p, found.truncation) == (0.5, 1.0, "auto")
    penalties = {"frequency_penalty": 0.0, "presence_penalty": 0.0}
    assert found.model_extra == {"store": False, **penalties}
    assert found.text and found.text.format and found.text.format.type == "json_schema"
    assert found.reasoning and found.reasoning.summary == "auto"
    judge.response(opening(asked(reasoning={"summary": "none"})))
    allowed = {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}
    judge.response(opening(asked(tools=[FUNCTION], tool_choice=allowed)))


@pytest.mark.parametrize(
    ("truncation", "policy"), [("auto", "rolling"), ("disabled", "error"), (None, None)]
)
def test_truncation_is_a_policy_of_the_context(truncation: str | None, policy: str | None) -> None:
    assert chat(truncation=truncation).context_overflow == policy
