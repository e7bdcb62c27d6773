"""Tools for templates that know none."""

import copy
import json
from typing import Any

from omlx_server.text.tool_calls.fallback import supports_tools, tools_as_text
from tests.text import chat_templates
from tests.text.tool_calls.meanings import TOOLS
from tests.text.tool_calls.reading import read

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    {"role": "tool", "tool_call_id": "call_2", "content": "sun"},
]


def test_which_templates_support_tools() -> None:
    assert supports_tools(chat_templates.TOOLS)
    assert supports_tools(chat_templates.TRIMMING)
    assert not supports_tools(chat_templates.CHATML)
    assert not supports_tools("{# tools #} tools {{ messages }}")
    assert not supports_tools("{% if tools")


def test_every_tool_is_told_in_a_new_system_message() -> None:
    first, second = tools_as_text([{"role": "user", "content": "Hi"}], TOOLS)
    assert first["role"] == "system"
    lines = first["content"].split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in lines] == TOOLS
    assert second == {"role": "user", "content": "Hi"}


def test_a_system_message_keeps_its_words() -> None:
    (told,) = tools_as_text([{"role": "system", "content": "Be kind."}], TOOLS)
    assert told["role"] == "system"
    assert told["content"].startswith("Be kind.\n\n# Tools")


def test_calls_and_results_become_plain_turns_that_alternate() -> None:
    asked = {"role": "user", "content": "And now?"}
    turns = tools_as_text([*TURNS, asked], TOOLS)
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    assert "tool_calls" not in turns[2]
    assert turns[3]["content"] == (
        "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>\nAnd now?"
    )


def test_calls_are_written_as_they_are_read() -> None:
    written = tools_as_text(TURNS, TOOLS)[2]["content"]
    calls = read("json_tools", [written]).calls
    assert [(call.name, call.arguments) for call in calls] == [
        ("get_weather", '{"city": "Rome"}')
    ] * 2


def test_the_block_teaches_what_the_parser_reads() -> None:
    block = tools_as_text([], TOOLS)[0]["content"]
    example = block.split("\n<tool_call>\n")[1].split("\n</tool_call>")[0]
    filled = example.replace("<function name>", "clock").replace("<arguments>", '"a": 1')
    (call,) = read("json_tools", [f"<tool_call>\n{filled}\n</tool_call>"]).calls
    assert (call.name, call.arguments) == ("clock", '{"a": 1}')


def test_the_clients_messages_stay_as_they_were() -> None:
    before = copy.deepcopy(TURNS)
    tools_as_text(TURNS, TOOLS)
    assert before == TURNS


def test_odd_calls_do_no_harm() -> None:
    odd: list[Any] = [[1], "x", [{}]]
    turns = [{"role": "assistant", "content": "", "tool_calls": calls} for calls in odd]
    assert len(tools_as_text(turns, [])) == 3
