"""langchain-openai: ChatOpenAI over chat completions and over responses, OpenAI, embeddings."""

# Its package is not in the project's own environment.
# mypy: disable-error-code="import-not-found"

from typing import Any

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from tests.clients.scenario import Scenarios, Server, too_long
from tests.clients.weather import CITIES, QUESTION, TOKENS, Weather, get_weather

scenarios = Scenarios("langchain-openai")

WEATHER = tool(get_weather)


def chatting(server: Server, **fields: Any) -> Any:
    given = {"max_tokens": 8, "temperature": 0, "max_retries": 0, "stream_usage": True}
    return ChatOpenAI(base_url=server.v1, **{"model": server.model, **given, **fields})


@scenarios
def chat(server: Server) -> None:
    answer = chatting(server).invoke(QUESTION)
    assert answer.content and answer.usage_metadata["output_tokens"] <= 8
    assert answer.response_metadata["finish_reason"] in ("length", "stop")


@scenarios
def stream_with_usage(server: Server) -> None:
    chunks = list(chatting(server).stream(QUESTION))
    assert len(chunks) > 2
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content and whole.usage_metadata["output_tokens"] <= 8


@scenarios
def tool_loop(server: Server) -> None:
    model = chatting(server, max_tokens=TOKENS)
    turns: list[Any] = [HumanMessage(QUESTION)]
    bound = model.bind_tools([WEATHER], tool_choice="get_weather", parallel_tool_calls=False)
    asked = bound.invoke(turns)
    assert len(asked.tool_calls) == 1 and asked.tool_calls[0]["args"]["city"] in CITIES
    turns += [asked, WEATHER.invoke(asked.tool_calls[0])]
    answer = model.bind_tools([WEATHER], tool_choice="none").invoke(turns)
    assert answer.content and not answer.tool_calls


@scenarios
def structured_output(server: Server) -> None:
    for method in ("json_schema", "function_calling"):
        form = chatting(server, max_tokens=TOKENS).with_structured_output(Weather, method=method)
        assert isinstance(form.invoke(QUESTION), Weather), method


@scenarios
def responses_with_a_tool(server: Server) -> None:
    model = chatting(server, use_responses_api=True, max_tokens=TOKENS)
    bound = model.bind_tools([WEATHER], tool_choice="required", parallel_tool_calls=False)
    asked = bound.invoke(QUESTION)
    assert asked.tool_calls[0]["args"]["city"] in CITIES
    turns = [HumanMessage(QUESTION), asked, WEATHER.invoke(asked.tool_calls[0])]
    chunks = list(model.stream(turns))
    assert "".join(chunk.text for chunk in chunks)


@scenarios
def completions_with_logprobs(server: Server) -> None:
    """`logprobs` is an integer here."""
    model: Any = OpenAI(
        model=server.model, base_url=server.v1, max_tokens=4, logprobs=2, max_retries=0
    )
    found = model.generate(["One two", "Three"])
    assert len(found.generations) == 2
    log = found.generations[0][0].generation_info["logprobs"]
    assert len(log["tokens"]) == len(log["token_logprobs"]) == 4
    assert "".join(model.stream("One two"))


@scenarios
def embeddings(server: Server) -> None:
    model: Any = OpenAIEmbeddings(
        model=server.embedding_model, base_url=server.v1, check_embedding_ctx_length=False
    )
    assert [len(vector) for vector in model.embed_documents(["a", "b"])] == [384, 384]
    assert len(model.embed_query("a")) == 384


def refused(kind: type[Exception], server: Server, prompt: str = "Hi", **fields: Any) -> None:
    try:
        chatting(server, **fields).invoke(prompt)
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


@scenarios
def errors(server: Server) -> None:
    refused(openai.NotFoundError, server, model="no/such")
    refused(openai.BadRequestError, server, temperature=9)


@scenarios
def long_prompts(server: Server) -> None:
    """Told by the words of the message alone: this package does not look at the code."""
    refused(ContextOverflowError, server, too_long())


if __name__ == "__main__":
    scenarios.main()
