"""langchain-ollama: ChatOllama, OllamaLLM and embeddings over Ollama's API."""

# Its package is not in the project's own environment.
# mypy: disable-error-code="import-not-found"

from typing import Any

import ollama
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

from tests.clients.scenario import Scenarios, Server
from tests.clients.weather import QUESTION, TOKENS, Weather, get_weather

scenarios = Scenarios("langchain-ollama")

WEATHER = tool(get_weather)


def chatting(server: Server, **fields: Any) -> Any:
    given = {"num_predict": 8, "temperature": 0, "keep_alive": "5m"}
    return ChatOllama(base_url=server.url, **{"model": server.model, **given, **fields})


@scenarios
def chat(server: Server) -> None:
    answer = chatting(server, validate_model_on_init=True).invoke(QUESTION)
    assert answer.content and 0 < answer.usage_metadata["output_tokens"] <= 8
    assert answer.response_metadata["done_reason"] in ("length", "stop")


@scenarios
def stream(server: Server) -> None:
    chunks = list(chatting(server).stream([SystemMessage("Be brief."), HumanMessage(QUESTION)]))
    assert len(chunks) > 2
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content and whole.usage_metadata["output_tokens"] <= 8


@scenarios
def structured_output(server: Server) -> None:
    form = chatting(server, num_predict=TOKENS).with_structured_output(
        Weather, method="json_schema"
    )
    assert isinstance(form.invoke(QUESTION), Weather)


@scenarios
def tool_loop(server: Server) -> None:
    """The model calls a tool, and answers with what the tool gave."""
    model = chatting(server, model=server.calling_model, num_predict=TOKENS).bind_tools([WEATHER])
    turns: list[Any] = [HumanMessage(QUESTION)]
    turns.append(model.invoke(turns))
    (call,) = turns[-1].tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    turns.append(WEATHER.invoke(call))
    assert model.invoke(turns).content == server.calling_model_answer


@scenarios
def text(server: Server) -> None:
    model: Any = OllamaLLM(model=server.model, base_url=server.url, num_predict=4)
    assert model.invoke("One two") and "".join(model.stream("One two"))


@scenarios
def embeddings(server: Server) -> None:
    model: Any = OllamaEmbeddings(model=server.embedding_model, base_url=server.url)
    assert [len(vector) for vector in model.embed_documents(["a", "b"])] == [384, 384]
    assert len(model.embed_query("a")) == 384


@scenarios
def errors(server: Server) -> None:
    for fields, status in (({"model": "no/such"}, 404), ({"temperature": 9.0}, 400)):
        try:
            chatting(server, **fields).invoke("Hi")
        except ollama.ResponseError as error:
            assert error.status_code == status
        else:
            raise AssertionError(f"no error for {fields}")


if __name__ == "__main__":
    scenarios.main()
