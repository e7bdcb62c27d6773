"""Custom tools in chat completions, judged by the openai package's own types."""

import re
from collections import defaultdict
from typing import Any

import pytest
from openai import OpenAI

from tests.api.harness import CHAT, ServerProcess, assert_envelope, stream_events, wait_for
from tests.api.tool_types import LARK, LARK_TEXT, RECURSIVE, REGEX


def custom(name: str = "shell", syntax: str = "", definition: str = "") -> Any:
    fields: dict[str, Any] = {"name": name, "description": "Runs it."}
    if syntax:
        grammar = {"syntax": syntax, "definition": definition}
        fields["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": fields}


NAMED = {"type": "custom", "custom": {"name": "shell"}}
NOW = {"type": "function", "function": {"name": "now"}}


def body(**fields: Any) -> Any:
    given = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "temperature": 2}
    return {"model": "tiny", "tools": [NOW, custom()], "tool_choice": NAMED, **given, **fields}


def called(client: OpenAI, **fields: Any) -> Any:
    answer = client.chat.completions.create(**body(**fields)).choices[0]
    (call,) = answer.message.tool_calls or []
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    assert call.type == "custom" and call.custom.name == "shell" and call.id
    return call


@pytest.mark.parametrize("seed", range(3))
def test_the_text_of_a_call_matches_its_grammar(client: OpenAI, seed: int) -> None:
    """Whatever the model and the temperature."""
    regex = called(client, tools=[custom("shell", "regex", REGEX)], seed=seed)
    assert re.fullmatch(REGEX, regex.custom.input)
    lark = called(client, tools=[custom("shell", "lark", LARK)], seed=seed)
    assert LARK_TEXT.fullmatch(lark.custom.input)


def test_a_stream_says_the_same_as_the_whole(client: OpenAI, tiny: ServerProcess) -> None:
    asked = body(tools=[NOW, custom("shell", "lark", LARK)], seed=4)
    whole = client.chat.completions.create(**asked).choices[0]
    answer = tiny.http.post(f"{tiny.url}{CHAT}", json={**asked, "stream": True})
    calls = [
        call
        for chunk in stream_events(answer.text)
        for call in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    first, *rest = calls
    assert (first["type"], first["custom"]) == ("custom", {"name": "shell", "input": ""})
    assert len(rest) > 1 and all(call.keys() == {"index", "custom"} for call in rest)
    (call,) = whole.message.tool_calls or []
    assert call.type == "custom"
    assert "".join(call["custom"]["input"] for call in rest) == call.custom.input


def test_calls_of_any_tool_are_told_apart(client: OpenAI) -> None:
    kinds: dict[str, set[str]] = defaultdict(set)
    tools = [NOW, custom("shell", "lark", LARK)]
    for seed in range(8):
        asked = body(tools=tools, tool_choice="required", parallel_tool_calls=False, seed=seed)
        (call,) = client.chat.completions.create(**asked).choices[0].message.tool_calls or []
        kinds[call.type].add(call.custom.name if call.type == "custom" else call.function.name)
    assert kinds == {"function": {"now"}, "custom": {"shell"}}


def test_what_was_called_is_shown_to_the_model_again(client: OpenAI, tiny: ServerProcess) -> None:
    call = called(client, tools=[custom("shell", "regex", REGEX)], seed=1)
    said = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "Done"}
    user = {"role": "user", "content": "Hi"}
    function = {"name": "shell", "arguments": {"input": call.custom.input}}
    same = {**said, "tool_calls": [{"id": call.id, "type": "function", "function": function}]}
    counts = [
        tiny.http.post(f"{tiny.url}/tokenize", json={"model": "tiny", "messages": messages}).json()
        for messages in ([user, said, result], [user, same, result])
    ]
    assert counts[0]["tokens"] == counts[1]["tokens"]


def test_a_grammar_that_is_not_enforced_is_told(tiny: ServerProcess) -> None:
    tools = [NOW, custom("shell", "lark", RECURSIVE)]
    asked = body(tools=tools, tool_choice="auto", max_tokens=4)
    answer = tiny.http.post(f"{tiny.url}{CHAT}", json=asked)
    assert answer.status_code == 200
    told = answer.headers["x-omlx-warnings"]
    assert told == "the Lark grammar of tools.1 is shown to the model, but not enforced"
    wait_for(lambda: told in tiny.log)  # the line comes when the exchange has ended
    fine = tiny.http.post(f"{tiny.url}{CHAT}", json=body(tool_choice="auto", max_tokens=4))
    assert "x-omlx-warnings" not in fine.headers


def test_tools_that_anthropic_runs_are_told_as_left_out(tiny: ServerProcess) -> None:
    asked = {
        "model": "tiny",
        "max_tokens": 2,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    }
    answer = tiny.http.post(f"{tiny.url}/v1/messages", json=asked)
    told = "left out, as this server can't do it: web_search_20250305"
    assert (answer.status_code, answer.headers["x-omlx-warnings"]) == (200, told)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([custom("shell", "lark", "start: missing")], "tools"),
        ([custom("shell", "regex", "(")], "tools"),
        ([custom(), custom()], "tools"),
        ([custom("other")], "tool_choice"),
        ([{"type": "custom"}], "tools"),
        ([{"type": "web_search"}], "tools"),
    ],
)
def test_what_can_not_be_is_refused(tiny: ServerProcess, tools: Any, param: str) -> None:
    answer = tiny.http.post(f"{tiny.url}{CHAT}", json=body(tools=tools))
    assert assert_envelope(answer, 400)["param"].partition(".")[0] == param
