"""pydantic-ai: agents over chat completions, responses and messages."""

# Its package is not in the project's own environment.
# mypy: disable-error-code="import-not-found"

import asyncio
from typing import Any

from pydantic_ai import Agent, Embedder, NativeOutput, ToolOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from tests.clients.scenario import Scenarios, Server, too_long
from tests.clients.weather import QUESTION, TOKENS, Weather, get_weather

scenarios = Scenarios("pydantic-ai-slim")

SETTINGS: Any = {"max_tokens": TOKENS, "temperature": 0}
BOUNDED: Any = UsageLimits(request_limit=4)


def models(server: Server) -> list[Any]:
    """One for each API."""
    opened = OpenAIProvider(base_url=server.v1, api_key="x")
    return [
        OpenAIChatModel(server.model, provider=opened),
        OpenAIResponsesModel(server.model, provider=opened),
        AnthropicModel(server.model, provider=AnthropicProvider(base_url=server.url, api_key="x")),
    ]


def plain(model: Any) -> None:
    settings = {**SETTINGS, "max_tokens": 16}
    result = Agent(model, instructions="Be brief.").run_sync(QUESTION, model_settings=settings)
    assert isinstance(result.output, str) and result.output
    assert 0 < result.usage.output_tokens <= 16


@scenarios
def chat(server: Server) -> None:
    plain(models(server)[0])


@scenarios
def responses(server: Server) -> None:
    plain(models(server)[1])


@scenarios
def messages(server: Server) -> None:
    plain(models(server)[2])


@scenarios
def stream(server: Server) -> None:
    async def texts() -> list[str]:
        agent = Agent(models(server)[0], model_settings={"max_tokens": 8})
        async with agent.run_stream(QUESTION) as result:
            return [text async for text in result.stream_text(delta=True, debounce_by=None)]

    assert len(asyncio.run(texts())) > 1


def formed(model: Any, output: Any) -> None:
    agent = Agent(model, output_type=output, model_settings=SETTINGS)
    assert isinstance(agent.run_sync(QUESTION, usage_limits=BOUNDED).output, Weather)


@scenarios
def output_by_tool_over_chat(server: Server) -> None:
    formed(models(server)[0], ToolOutput(Weather))


@scenarios
def output_by_schema_over_chat(server: Server) -> None:
    formed(models(server)[0], NativeOutput(Weather))


@scenarios
def output_by_schema_over_responses(server: Server) -> None:
    formed(models(server)[1], NativeOutput(Weather))


@scenarios
def output_by_tool_over_messages(server: Server) -> None:
    formed(models(server)[2], ToolOutput(Weather))


def first_a_call(context: Any) -> Any:
    """Then text, so that the run ends."""
    choice: Any = ["get_weather"] if context.run_step <= 1 else "none"
    return {**SETTINGS, "tool_choice": choice, "parallel_tool_calls": False}


@scenarios
def tool_loop(server: Server) -> None:
    for model in models(server):
        agent = Agent(model, model_settings=first_a_call)
        agent.tool_plain(get_weather)
        result = agent.run_sync(QUESTION, usage_limits=BOUNDED)
        parts = [part for message in result.all_messages() for part in message.parts]
        returned = [part.content for part in parts if part.part_kind == "tool-return"]
        assert len(returned) == 1 and returned[0].startswith("Rain in")
        assert result.output


@scenarios
def embeddings(server: Server) -> None:
    opened = OpenAIProvider(base_url=server.v1, api_key="x")
    embedder = Embedder(OpenAIEmbeddingModel(server.embedding_model, provider=opened))
    result = embedder.embed_documents_sync(["a", "b"])
    assert [len(vector) for vector in result.embeddings] == [384, 384]


@scenarios
def errors(server: Server) -> None:
    def refused(kind: type[Exception], name: str, prompt: str, **settings: Any) -> Any:
        opened = OpenAIProvider(base_url=server.v1, api_key="x")
        agent = Agent(OpenAIChatModel(name, provider=opened), model_settings=settings)
        try:
            agent.run_sync(prompt)
        except kind as error:
            return error
        raise AssertionError(f"no {kind.__name__}")

    assert refused(ModelHTTPError, "no/such", "Hi").status_code == 404
    assert refused(ModelHTTPError, server.model, "Hi", temperature=9.0).status_code == 400
    refused(ModelContextWindowExceededError, server.model, too_long())


if __name__ == "__main__":
    scenarios.main()
