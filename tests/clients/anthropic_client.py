"""The anthropic package, with strict validation."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
from anthropic import Anthropic

from tests.clients.scenario import Scenarios, Server, too_long

scenarios = Scenarios("anthropic")

QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "The weather",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
]
FORCED: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}


@contextmanager
def connected(server: Server) -> Iterator[Anthropic]:
    with Anthropic(
        base_url=server.url, api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@scenarios
def message(server: Server) -> None:
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    with connected(server) as client:
        answer = client.messages.create(
            model=server.model, messages=QUESTION, system=system, max_tokens=8
        )
    assert answer.stop_reason in ("max_tokens", "end_turn")
    assert answer.content[0].type == "text" and answer.usage.output_tokens <= 8


@scenarios
def stream(server: Server) -> None:
    with (
        connected(server) as client,
        client.messages.stream(model=server.model, messages=QUESTION, max_tokens=8) as events,
    ):
        kinds = [event.type for event in events]
        final = events.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert final.stop_reason in ("max_tokens", "end_turn") and final.usage.output_tokens > 0


@scenarios
def tool_loop(server: Server) -> None:
    with connected(server) as client:
        asked: Any = {"model": server.model, "tools": TOOLS, "max_tokens": 60}
        first = client.messages.create(messages=QUESTION, tool_choice=FORCED, **asked)
        assert first.stop_reason == "tool_use"
        call = first.content[-1]
        assert call.type == "tool_use" and call.input["city"] in ("Paris", "Rome")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain"}
        said = {"role": "assistant", "content": [b.model_dump() for b in first.content]}
        turns = [*QUESTION, said, {"role": "user", "content": [result]}]
        second = client.messages.create(messages=turns, tool_choice={"type": "none"}, **asked)
    assert [block.type for block in second.content] == ["text"]


@scenarios
def tool_stream(server: Server) -> None:
    with (
        connected(server) as client,
        client.messages.stream(
            model=server.model, messages=QUESTION, tools=TOOLS, tool_choice=FORCED, max_tokens=60
        ) as events,
    ):
        final = events.get_final_message()
    call = final.content[-1]
    assert final.stop_reason == "tool_use"
    assert call.type == "tool_use" and call.input["city"] in ("Paris", "Rome")


@scenarios
def count_tokens(server: Server) -> None:
    with connected(server) as client:
        counted = client.messages.count_tokens(model=server.model, messages=QUESTION, tools=TOOLS)
        answer = client.messages.create(
            model=server.model,
            messages=QUESTION,
            tools=TOOLS,
            tool_choice={"type": "auto"},
            max_tokens=1,
        )
    usage = answer.usage
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    assert counted.input_tokens == usage.input_tokens + cached


@scenarios
def errors(server: Server) -> None:
    def refused(kind: type[anthropic.APIStatusError], **fields: Any) -> None:
        try:
            client.messages.create(
                **{"model": server.model, "messages": QUESTION, "max_tokens": 1, **fields}
            )
        except kind:
            return
        raise AssertionError(f"no {kind.__name__} for {list(fields)}")

    with connected(server) as client:
        refused(anthropic.NotFoundError, model="no/such")
        refused(anthropic.BadRequestError, max_tokens=0)
        refused(anthropic.BadRequestError, messages=[{"role": "user", "content": too_long()}])


if __name__ == "__main__":
    scenarios.main()
