"""litellm: the same server as an OpenAI, a text completion and an Anthropic provider."""

# Its package is not in the project's own environment.
# mypy: disable-error-code="import-not-found"

import json
from typing import Any

import litellm

from tests.clients.scenario import Scenarios, Server, too_long
from tests.clients.weather import CITIES, QUESTION, TOKENS, Weather

scenarios = Scenarios("litellm")

MESSAGES = [{"role": "user", "content": QUESTION}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": list(CITIES)}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def ask(server: Server, **fields: Any) -> Any:
    asked: dict[str, Any] = {
        "model": f"openai/{server.model}",
        "messages": MESSAGES,
        "max_tokens": 8,
        "api_base": server.v1,
        "api_key": "x",
        "num_retries": 0,
        "max_retries": 0,
    }
    return litellm.completion(**{**asked, **fields})


@scenarios
def chat(server: Server) -> None:
    answer = ask(server)
    assert answer.choices[0].message.content and answer.usage.completion_tokens <= 8
    assert answer.choices[0].finish_reason in ("length", "stop")


@scenarios
def stream_with_usage(server: Server) -> None:
    chunks = list(ask(server, stream=True, stream_options={"include_usage": True}))
    built: Any = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.content and built.usage.prompt_tokens > 0
    assert built.usage.completion_tokens <= 8


@scenarios
def tool_loop(server: Server) -> None:
    asked: dict[str, Any] = {"tools": TOOLS, "max_tokens": TOKENS, "parallel_tool_calls": False}
    first = ask(server, tool_choice="required", **asked).choices[0]
    assert first.finish_reason == "tool_calls"
    call = first.message.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] in CITIES
    result = {"role": "tool", "tool_call_id": call.id, "content": "Rain"}
    turns = [*MESSAGES, first.message.model_dump(), result]
    assert ask(server, messages=turns, tool_choice="none", **asked).choices[0].message.content


@scenarios
def structured_output(server: Server) -> None:
    answer = ask(server, response_format=Weather, max_tokens=TOKENS)
    assert Weather.model_validate_json(answer.choices[0].message.content)


@scenarios
def as_anthropic(server: Server) -> None:
    answer = ask(server, model=f"anthropic/{server.model}", api_base=server.url, max_tokens=8)
    assert answer.choices[0].message.content and answer.usage.completion_tokens <= 8


@scenarios
def as_text_completion(server: Server) -> None:
    answer: Any = litellm.text_completion(
        model=f"text-completion-openai/{server.model}",
        prompt="One two three",
        max_tokens=4,
        logprobs=2,
        api_base=server.v1,
        api_key="x",
    )
    assert answer.choices[0].text and len(answer.choices[0].logprobs.tokens) == 4


@scenarios
def responses(server: Server) -> None:
    answer: Any = litellm.responses(
        model=f"openai/{server.model}",
        input="Say hello.",
        max_output_tokens=16,
        api_base=server.v1,
        api_key="x",
    )
    assert answer.output and answer.usage.output_tokens <= 16


@scenarios
def embeddings(server: Server) -> None:
    answer: Any = litellm.embedding(
        model=f"openai/{server.embedding_model}",
        input=["a", "b"],
        api_base=server.v1,
        api_key="x",
        encoding_format="float",
    )
    assert [len(row["embedding"]) for row in answer.data] == [384, 384]


@scenarios
def errors(server: Server) -> None:
    refused(litellm.NotFoundError, server, model="openai/no/such")
    refused(litellm.BadRequestError, server, temperature=9)
    refused(litellm.BadRequestError, server, messages=[])
    refused(litellm.BadRequestError, server, model=f"openai/{server.embedding_model}")


@scenarios
def long_prompts(server: Server) -> None:
    long = [{"role": "user", "content": too_long()}]
    kind = litellm.ContextWindowExceededError
    refused(kind, server, messages=long)
    refused(kind, server, messages=long, stream=True)
    refused(kind, server, messages=long, model=f"anthropic/{server.model}", api_base=server.url)


def refused(kind: type[Exception], server: Server, **fields: Any) -> None:
    try:
        ask(server, **fields)
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


if __name__ == "__main__":
    scenarios.main()
