"""openai-agents: whole runs with both of its model classes."""

# Its package is not in the project's own environment.
# mypy: disable-error-code="import-not-found"

import asyncio
from typing import Any

import openai
from agents import (
    Agent,
    MaxTurnsExceeded,
    Model,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

from tests.clients.scenario import Scenarios, Server
from tests.clients.weather import QUESTION, TOKENS, Weather, get_weather

scenarios = Scenarios("openai-agents")

KINDS: tuple[Any, ...] = (OpenAIResponsesModel, OpenAIChatCompletionsModel)


def opened(server: Server, kind: Any, name: str = "") -> Model:
    client = AsyncOpenAI(
        base_url=server.v1, api_key="x", max_retries=0, _strict_response_validation=True
    )
    model: Model = kind(model=name or server.model, openai_client=client)
    return model


def settings(**fields: Any) -> ModelSettings:
    """An answer that was cut is an error to this package: so texts end with a sentence."""
    stop = {"stop": ["."]}
    return ModelSettings(**{"max_tokens": TOKENS, "temperature": 0, "extra_body": stop, **fields})


def run(agent: Any, **fields: Any) -> Any:
    return asyncio.run(Runner.run(agent, QUESTION, max_turns=3, **fields))


def plain(server: Server, kind: Any) -> None:
    agent = Agent(name="a", model=opened(server, kind), model_settings=settings())
    result = run(agent)
    assert isinstance(result.final_output, str) and result.final_output
    assert result.context_wrapper.usage.output_tokens > 0


@scenarios
def over_responses(server: Server) -> None:
    plain(server, OpenAIResponsesModel)


@scenarios
def over_chat(server: Server) -> None:
    plain(server, OpenAIChatCompletionsModel)


def with_tool(server: Server, kind: Any) -> None:
    """The first turn must call; after it the choice is free again, and the run ends."""
    agent = Agent(
        name="a",
        model=opened(server, kind),
        tools=[function_tool(get_weather)],
        model_settings=settings(tool_choice="get_weather", parallel_tool_calls=False),
        tool_use_behavior="run_llm_again",
    )
    try:
        items = run(agent).new_items
    except MaxTurnsExceeded as error:  # a tiny model may want to look at the weather all day
        items = error.run_data.new_items
    assert [item.type for item in items[:2]] == ["tool_call_item", "tool_call_output_item"]
    assert "Rain in" in str(items[1].output)


@scenarios
def tool_over_responses(server: Server) -> None:
    with_tool(server, OpenAIResponsesModel)


@scenarios
def tool_over_chat(server: Server) -> None:
    with_tool(server, OpenAIChatCompletionsModel)


@scenarios
def output_type(server: Server) -> None:
    for kind in KINDS:
        agent = Agent(
            name="a",
            model=opened(server, kind),
            output_type=Weather,
            model_settings=settings(),
        )
        assert isinstance(run(agent).final_output, Weather)


@scenarios
def streamed(server: Server) -> None:
    async def kinds_of(kind: Any) -> list[str]:
        agent = Agent(name="a", model=opened(server, kind), model_settings=settings())
        result = Runner.run_streamed(agent, QUESTION, max_turns=1)
        return [
            event.data.type
            async for event in result.stream_events()
            if event.type == "raw_response_event"
        ]

    for kind in KINDS:
        kinds = asyncio.run(kinds_of(kind))
        assert kinds[0] == "response.created" and "response.output_text.delta" in kinds
        assert kinds[-1] == "response.completed"


@scenarios
def cut_answers(server: Server) -> None:
    """A response that ran out of tokens is told from one that is complete."""
    cut = settings(max_tokens=2, extra_body=None)
    agent = Agent(name="a", model=opened(server, OpenAIResponsesModel), model_settings=cut)
    try:
        run(agent)
    except ModelBehaviorError as error:
        assert "max_output_tokens" in str(error)
        return
    raise AssertionError("a cut answer passed as complete")


@scenarios
def errors(server: Server) -> None:
    for kind in KINDS:
        agent = Agent(name="a", model=opened(server, kind, "no/such"))
        try:
            run(agent)
        except openai.NotFoundError:
            continue
        raise AssertionError("an unknown model was not refused")


if __name__ == "__main__":
    scenarios.main()
