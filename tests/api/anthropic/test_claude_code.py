"""A conversation as Claude Code has it: `HEAD /`, a dozen tools, system turns, a second turn."""

from typing import Any

import orjson
import pytest

from tests.api.anthropic.asking import COUNT, PATH, count, events
from tests.api.harness import ServerProcess

Json = dict[str, Any]

HEADERS = {
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management",
    "anthropic-version": "2023-06-01",
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
}
CACHED = {"cache_control": {"type": "ephemeral"}}
WORDS = " weather weather weather weather weather there"  # a token each to the tests' tokenizer


def tool(number: int) -> Json:
    properties = {"option_0": {"type": "string", "description": WORDS * 5}}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": ["option_0"],
        "additionalProperties": False,
    }
    return {"name": f"Tool{number}", "description": WORDS * 47, "input_schema": schema}


TOOLS = [
    *map(tool, range(12)),
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
]


def request(billing: str, *turns: Json) -> Json:
    return {
        "model": "org/thinker",
        "max_tokens": 4,
        "stream": True,
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version={billing};"},
            {"type": "text", "text": "You are Claude Code.", **CACHED},
            {"type": "text", "text": f"\n{WORDS * 20}", **CACHED},
        ],
        "tools": TOOLS,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>\nToday.\n</system-reminder>\n"},
                    {"type": "text", "text": "Look around.", **CACHED},
                ],
            },
            {"role": "system", "content": "Prefer short answers."},
            *turns,
        ],
        "thinking": {"type": "adaptive", "display": "summarized"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": "user_0_account__session_1"},
    }


@pytest.fixture
def second_turn() -> list[Json]:
    use = {"type": "tool_use", "id": "toolu_1", "name": "Tool1", "input": {"option_0": "a"}}
    thought = {"type": "thinking", "thinking": "I look.", "signature": "unsigned"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Nothing.", **CACHED}
    return [
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Well."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
        {"role": "system", "content": [{"type": "text", "text": "The user has left."}]},
    ]


def ask(server: ServerProcess, fields: Json) -> Json:
    """The usage, after all events were judged."""
    url = f"{server.url}{PATH}?beta=true"
    response = server.http.post(url, json=fields, headers=HEADERS)
    assert response.status_code == 200, response.text
    told = [event for event in events(response.text) if event["type"] != "ping"]
    assert told[0]["type"] == "message_start" and told[-1]["type"] == "message_stop"
    usage: Json = told[-2]["usage"]
    return usage


def test_two_turns_of_a_session(thinker: ServerProcess, second_turn: list[Json]) -> None:
    """What changes between them, the billing block, leaves the whole first prompt cached."""
    assert thinker.http.head(thinker.url).status_code == 200
    assert len(orjson.dumps(TOOLS)) > 30_000
    first = ask(thinker, request("1.0; cch=aaaaa"))
    second = ask(thinker, request("1.0; cch=bbbbb", *second_turn))
    prompt = first["input_tokens"] + first["cache_read_input_tokens"]
    assert second["cache_read_input_tokens"] > prompt - 200
    fields = request("1.0; cch=ccccc", *second_turn)
    whole = second["input_tokens"] + second["cache_read_input_tokens"]
    counted = thinker.http.post(f"{thinker.url}{COUNT}?beta=true", json=fields, headers=HEADERS)
    assert counted.json() == {"input_tokens": whole}
    assert count(thinker, request("")) == prompt
