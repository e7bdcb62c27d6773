"""The openai package, which checks the type of every field that it gets."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import openai
from openai import OpenAI
from pydantic import BaseModel, ConfigDict

from tests.clients.scenario import Scenarios, Server, too_long

scenarios = Scenarios("openai")

QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather", "parameters": PARAMETERS}
CHAT_TOOLS: Any = [{"type": "function", "function": FUNCTION}]
TOOLS: Any = [{"type": "function", "strict": True, **FUNCTION}]


class Weather(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sky: Literal["clear", "cloudy"]
    windy: bool


@contextmanager
def connected(server: Server, *, strict: bool = True) -> Iterator[OpenAI]:
    """Not strict only where the package's types contradict the API itself."""
    with OpenAI(
        base_url=server.v1, api_key="x", max_retries=0, _strict_response_validation=strict
    ) as client:
        yield client


@scenarios
def models(server: Server) -> None:
    with connected(server) as client:
        names = [model.id for model in client.models.list()]
        assert server.model in names and server.embedding_model in names
        assert client.models.retrieve(server.model).id == server.model


@scenarios
def chat(server: Server) -> None:
    with connected(server) as client:
        answer = client.chat.completions.create(
            model=server.model, messages=QUESTION, max_completion_tokens=8, logprobs=True
        )
    choice = answer.choices[0]
    assert choice.message.content and choice.finish_reason in ("length", "stop")
    assert choice.logprobs and choice.logprobs.content
    assert answer.usage and 0 < answer.usage.completion_tokens <= 8
    assert len(choice.logprobs.content) == answer.usage.completion_tokens


@scenarios
def chat_stream_with_usage(server: Server) -> None:
    with connected(server) as client:
        stream = client.chat.completions.create(
            model=server.model,
            messages=QUESTION,
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    assert chunks[-1].usage and not chunks[-1].choices
    assert all(chunk.usage is None for chunk in chunks[:-1])
    finishes = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert finishes in (["length"], ["stop"])


@scenarios
def chat_tool_loop(server: Server) -> None:
    """A named call, its result, and the answer to that."""
    with connected(server) as client:
        asked: Any = {"model": server.model, "tools": CHAT_TOOLS, "max_tokens": 60}
        named: Any = {"type": "function", "function": {"name": "get_weather"}}
        first = client.chat.completions.create(messages=QUESTION, tool_choice=named, **asked)
        message = first.choices[0].message
        assert message.tool_calls and message.tool_calls[0].type == "function"
        call = message.tool_calls[0]
        assert call.id
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
        result = {"role": "tool", "tool_call_id": call.id, "content": "Rain"}
        turns = [*QUESTION, message.model_dump(exclude_none=True), result]
        second = client.chat.completions.create(messages=turns, tool_choice="none", **asked)
    assert second.choices[0].message.content and not second.choices[0].message.tool_calls
    assert second.choices[0].finish_reason in ("length", "stop")


@scenarios
def chat_tool_stream(server: Server) -> None:
    """The package puts the fragments together and parses them."""
    with (
        connected(server) as client,
        client.chat.completions.stream(
            model=server.model,
            messages=QUESTION,
            tools=[openai.pydantic_function_tool(Weather)],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=60,
        ) as stream,
    ):
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.tool_calls
    call = final.choices[0].message.tool_calls[0]
    assert call.id and isinstance(call.function.parsed_arguments, Weather)


@scenarios
def chat_parse(server: Server) -> None:
    with connected(server) as client:
        answer = client.chat.completions.parse(
            model=server.model, messages=QUESTION, response_format=Weather, max_tokens=60
        )
    assert isinstance(answer.choices[0].message.parsed, Weather)


@scenarios
def completions(server: Server) -> None:
    with connected(server) as client:
        answer = client.completions.create(
            model=server.model, prompt=["One", "Two"], max_tokens=2, logprobs=2
        )
    # The package's types know no chunk without a finish reason; the API itself sends null.
    with connected(server, strict=False) as client:
        chunks = list(
            client.completions.create(model=server.model, prompt="One", max_tokens=3, stream=True)
        )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(c.logprobs and c.logprobs.top_logprobs for c in answer.choices)
    assert chunks[-1].choices[0].finish_reason


@scenarios
def completions_score_a_prompt(server: Server) -> None:
    """The first token has no log-probability; the package's types know of none that is null."""
    with connected(server, strict=False) as client:
        answer = client.completions.create(
            model=server.model, prompt="One two three", max_tokens=0, echo=True, logprobs=2
        )
    log = answer.choices[0].logprobs
    assert answer.choices[0].text == "One two three"
    assert log and log.tokens and log.token_logprobs and log.text_offset
    assert "".join(log.tokens) == answer.choices[0].text
    first, *others = map(str, log.token_logprobs)
    assert first == "None" and all(float(other) < 0 for other in others)


@scenarios
def embeddings(server: Server) -> None:
    """By itself the package asks for base64, and decodes it after its types were checked."""
    with connected(server) as client:
        plain = client.embeddings.create(
            model=server.embedding_model, input=["a", "b"], encoding_format="float"
        )
    with connected(server, strict=False) as client:
        decoded = client.embeddings.create(model=server.embedding_model, input=["a", "b"])
    assert [len(row.embedding) for row in plain.data] == [384, 384]
    for one, other in zip(plain.data, decoded.data, strict=True):
        pairs = zip(one.embedding, other.embedding, strict=True)
        assert all(abs(a - b) < 1e-7 for a, b in pairs)


@scenarios
def responses(server: Server) -> None:
    with connected(server) as client:
        first = client.responses.create(
            model=server.model, input="Say hello.", instructions="Be brief.", max_output_tokens=16
        )
        second = client.responses.create(
            model=server.model,
            input="And again.",
            previous_response_id=first.id,
            max_output_tokens=16,
        )
        stored = client.responses.retrieve(first.id)
        items = list(client.responses.input_items.list(second.id))
        client.responses.delete(first.id)
    assert first.output_text and stored.output == first.output
    assert first.usage and second.usage and second.usage.input_tokens > first.usage.input_tokens
    assert len(items) >= 3


@scenarios
def responses_stream(server: Server) -> None:
    with connected(server) as client:
        events = list(
            client.responses.create(
                model=server.model, input="Say hello.", max_output_tokens=16, stream=True
            )
        )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type in ("response.completed", "response.incomplete")


@scenarios
def responses_tool_loop(server: Server) -> None:
    with connected(server) as client:
        asked: Any = {"model": server.model, "tools": TOOLS, "max_output_tokens": 60}
        first = client.responses.create(
            input="The weather in Paris?",
            tool_choice="required",
            parallel_tool_calls=False,
            **asked,
        )
        call = first.output[-1]
        assert call.type == "function_call"
        assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}]
        second = client.responses.create(
            input=result, previous_response_id=first.id, tool_choice="none", **asked
        )
    assert second.output_text


@scenarios
def responses_parse(server: Server) -> None:
    with connected(server) as client:
        answer = client.responses.parse(
            model=server.model, input="The weather?", text_format=Weather, max_output_tokens=60
        )
    assert isinstance(answer.output_parsed, Weather)


@scenarios
def errors(server: Server) -> None:
    def refused(kind: type[openai.APIStatusError], **fields: Any) -> openai.APIStatusError:
        try:
            client.chat.completions.create(
                **{"model": server.model, "messages": QUESTION, "max_tokens": 1, **fields}
            )
        except kind as error:
            return error
        raise AssertionError(f"no {kind.__name__}")

    with connected(server) as client:
        assert refused(openai.NotFoundError, model="no/such").code == "model_not_found"
        assert refused(openai.BadRequestError, temperature=9).param == "temperature"
        long = [{"role": "user", "content": too_long()}]
        assert refused(openai.BadRequestError, messages=long).code == "context_length_exceeded"
        assert refused(openai.BadRequestError, messages=long, stream=True)
        try:
            client.responses.create(model="no/such", input="Hi")
        except openai.NotFoundError:
            return
    raise AssertionError("an unknown model was not refused")


if __name__ == "__main__":
    scenarios.main()
