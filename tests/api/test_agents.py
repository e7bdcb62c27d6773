"""What coding agents send, as they send it: answered, and their second turn finds the first cached.

Claude Code's streams are in tests/api/anthropic/test_claude_code.py, Codex's mixed tools in
tests/api/responses/test_agents.py; here are opencode, and what those two leave out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.api.conftest import CHATML
from tests.api.harness import CHAT, UNPROBED, Json, ServerProcess, serving, stream_events
from tests.text import makers
from tests.tiny_models import save_tiny

ANSWER_TOKENS = 8
CONTEXT = 1 << 16
DESCRIBED = "Reads what is written there, and says what it found. " * 3
ENVIRONMENT = "<env>\nWorking directory: /repo\nIs directory a git repo: yes\n</env>\n" * 4
OPENCODE_HEADERS = {
    "authorization": "Bearer x",
    "user-agent": "opencode/1.2.0 ai-sdk/openai-compatible/3.0.92 runtime/bun/1.3.0",
    "x-opencode-client": "cli",
    "x-opencode-session": "ses_1",
    "x-session-affinity": "ses_1",
}
CLAUDE_HEADERS = {
    "anthropic-beta": "claude-code-20250219,context-1m-2025-08-07,unknown-beta-2030-01-01",
    "anthropic-dangerous-direct-browser-access": "true",
    "anthropic-version": "2023-06-01",
    "authorization": "Bearer x",
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "x-app": "cli",
}
CODEX_HEADERS = {
    "accept": "text/event-stream",
    "authorization": "Bearer x",
    "originator": "codex_cli_rs",
    "session_id": "0199-thread",
    "user-agent": "codex_cli_rs/0.80.0 (Linux 6.8.0; x86_64)",
    "version": "0.80.0",
    "x-codex-turn-metadata": '{"turn":"1"}',
}


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A tiny model that holds a dozen tools."""
    models = tmp_path_factory.mktemp("agents")
    path: Path = makers.save(models / "org" / "tiny", "byte_level", CHATML)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(path, "llama", vocab_size=vocab, max_position_embeddings=CONTEXT)
    with serving("org/tiny", models / "server", f"models.dirs={models}", UNPROBED) as server:
        yield server


def schema(number: int) -> Json:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "filePath": {"type": "string", "description": f"The path of file {number}"},
            "limit": {"type": "integer", "minimum": 0, "exclusiveMaximum": 9007199254740991},
            "edits": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        },
        "required": ["filePath"],
        "additionalProperties": False,
    }


def post(server: ServerProcess, path: str, fields: Json, headers: dict[str, str]) -> httpx.Response:
    response = server.http.post(f"{server.url}{path}", json=fields, headers=headers)
    assert response.status_code == 200, response.text
    return response


def named_events(text: str) -> list[Json]:
    """Those of a stream in which every event has its name before it."""
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n")
            found.append(orjson.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    return found


# -- opencode: chat completions ------------------------------------------------------------------


def opencode(server: ServerProcess, *turns: Json) -> Json:
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": DESCRIBED,
                "parameters": schema(number),
                "strict": False,
            },
        }
        for number in range(12)
    ]
    return {
        "model": server.model,
        "max_tokens": 32_000,
        "temperature": 0,
        "top_p": 1,
        "messages": [
            {"role": "system", "content": f"You are opencode, an agent.\n{ENVIRONMENT}"},
            {"role": "user", "content": [{"type": "text", "text": "Look around."}]},
            *turns,
        ],
        "tools": tools,
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "medium",
        "textVerbosity": "low",
        "usage": {"include": True},
        "promptCacheKey": "ses_1",
        "stop": None,
        # For the test alone: an answer that is soon over.
        "max_completion_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
    }


def opencode_usage(server: ServerProcess, fields: Json) -> Json:
    chunks = stream_events(post(server, CHAT, fields, OPENCODE_HEADERS).text)
    assert {chunk["model"] for chunk in chunks} == {server.model}
    finishes = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
    assert finishes[-1] == "length" and not any(finishes[:-1])
    usage: Json = chunks[-1]["usage"]
    assert chunks[-1]["choices"] == [] and usage["completion_tokens"] == ANSWER_TOKENS
    return usage


def test_two_turns_of_opencode(agents: ServerProcess) -> None:
    first = opencode_usage(agents, opencode(agents))
    assert first["prompt_tokens"] > 2500
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "tool_3", "arguments": '{"filePath":"/repo"}'},
    }
    said = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I look.",
        "tool_calls": [call],
    }
    result = {"role": "tool", "tool_call_id": "call_1", "content": "README.md"}
    second = opencode_usage(agents, opencode(agents, said, result))
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert first["prompt_tokens"] - 100 < cached < second["prompt_tokens"]


def test_the_length_that_opencode_asks_for_ends_with_the_context(agents: ServerProcess) -> None:
    """Agents ask for more tokens than a small model has room for."""
    fields = {**opencode(agents), "stop_token_ids": None, "max_tokens": 10 * CONTEXT}
    assert opencode_usage(agents, fields)["completion_tokens"] == ANSWER_TOKENS


# -- Codex: responses ----------------------------------------------------------------------------


def codex(server: ServerProcess, *items: Json) -> Json:
    functions = [
        {
            "type": "function",
            "name": f"tool_{number}",
            "description": DESCRIBED,
            "strict": False,
            "parameters": schema(number),
        }
        for number in range(10)
    ]
    others = [
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edits files",
            "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
        },
        {"type": "web_search", "external_web_access": False, "search_content_types": ["text"]},
        {"type": "namespace", "name": "mcp__docs", "description": "Docs", "tools": functions[:2]},
        {"type": "local_shell"},
        {"type": "image_generation", "output_format": "png"},
    ]
    return {
        "model": server.model,
        "instructions": f"You are Codex, a coding agent.\n{ENVIRONMENT}",
        "input": [
            message("developer", "input_text", "<permissions>read-only</permissions>"),
            message("user", "input_text", "<environment_context>/repo</environment_context>"),
            message("user", "input_text", "Look around."),
            *items,
        ],
        "tools": [*functions, *others],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-thread",
        "client_metadata": {"x-codex-installation-id": "i"},
        "text": {"verbosity": "low"},
        "service_tier": "auto",
        "max_output_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
    }


def message(role: str, kind: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def codex_response(server: ServerProcess, fields: Json) -> Json:
    events = named_events(post(server, "/v1/responses", fields, CODEX_HEADERS).text)
    assert events[0]["type"] == "response.created"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last: Json = events[-1]["response"]
    assert last["status"] == "incomplete" and last["prompt_cache_key"] == "0199-thread"
    return last


def test_two_turns_of_codex(agents: ServerProcess) -> None:
    first = codex_response(agents, codex(agents))
    call = {
        "type": "function_call",
        "name": "tool_3",
        "arguments": '{"filePath":"/repo"}',
        "call_id": "call_1",
    }
    result = {"type": "function_call_output", "call_id": "call_1", "output": "README.md"}
    go_on = message("user", "input_text", "Go on.")
    second = codex_response(agents, codex(agents, *first["output"], call, result, go_on))
    before, usage = first["usage"]["input_tokens"], second["usage"]
    assert before > 2500
    cached = usage["input_tokens_details"]["cached_tokens"]
    assert before - 100 < cached < usage["input_tokens"]


# -- Claude Code: messages -----------------------------------------------------------------------


def claude(server: ServerProcess, **fields: Any) -> Json:
    metadata = {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'}
    return {"model": server.model, "max_tokens": 1, "metadata": metadata, **fields}


def test_claude_code_looks_whether_it_is_let_in(agents: ServerProcess) -> None:
    """Before its first question: `HEAD /`, then one token for the word quota."""
    assert agents.http.head(agents.url, headers=CLAUDE_HEADERS).status_code == 200
    asked = claude(agents, messages=[{"role": "user", "content": "quota"}])
    answer = post(agents, "/v1/messages?beta=true", asked, CLAUDE_HEADERS).json()
    assert answer["type"] == "message" and answer["stop_reason"] == "max_tokens"
    assert answer["usage"]["output_tokens"] == 1


def test_claude_code_names_the_session(agents: ServerProcess) -> None:
    """An answer of a fixed form, streamed, without tools or thoughts."""
    form = {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 8, "pattern": "^[a-z]+$"}},
        "required": ["title"],
        "additionalProperties": False,
    }
    asked = claude(
        agents,
        max_tokens=200,
        stream=True,
        temperature=1,
        tools=[],
        thinking={"type": "disabled"},
        system=[{"type": "text", "text": "Write a title."}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Look around."}]}],
        output_config={"format": {"type": "json_schema", "schema": form}},
    )
    events = named_events(post(agents, "/v1/messages?beta=true", asked, CLAUDE_HEADERS).text)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert set(orjson.loads("".join(delta["text"] for delta in deltas))) == {"title"}
    assert events[-2]["delta"]["stop_reason"] == "end_turn"


def test_claude_code_counts_tokens(agents: ServerProcess) -> None:
    tools = [
        {"name": f"Tool{number}", "description": DESCRIBED, "input_schema": schema(number)}
        for number in range(12)
    ]
    counts = [
        post(
            agents,
            "/v1/messages/count_tokens?beta=true",
            {"model": agents.model, "messages": [{"role": "user", "content": "foo"}], **extra},
            CLAUDE_HEADERS,
        ).json()["input_tokens"]
        for extra in ({}, {"tools": tools})
    ]
    assert 0 < counts[0] < counts[1] and counts[1] > 2500
