"""simonw/llm: the program with a model of its extra-openai-models.yaml, and its Python side."""

# Its package is not in the project's own environment.
# mypy: disable-error-code="import-not-found"

import json
import os
import subprocess
import sys
from typing import Any

import llm
from llm.default_plugins.openai_models import OpenAIEmbeddingModel

from tests.clients.scenario import Scenarios, Server
from tests.clients.weather import CITIES, QUESTION, TOKENS, Weather, get_weather

scenarios = Scenarios("llm")

MODELS = """
- model_id: local
  model_name: {model}
  api_base: {url}
  supports_tools: true
  supports_schema: true
- model_id: local-text
  model_name: {model}
  api_base: {url}
  completion: true
- model_id: local-responses
  model_name: {model}
  api_base: {url}
  responses: true
- model_id: missing
  model_name: no/such
  api_base: {url}
"""


def configure(server: Server) -> None:
    """Before anything else: the program reads this when it starts."""
    os.environ["LLM_USER_PATH"] = str(server.directory)
    text = MODELS.format(model=server.model, url=server.v1)
    (server.directory / "extra-openai-models.yaml").write_text(text, encoding="utf-8")


def program(*words: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "llm", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr[-300:]
    return done.stderr if status else done.stdout


def model(server: Server) -> Any:
    configure(server)
    return llm.get_model("local")


@scenarios
def the_program(server: Server) -> None:
    configure(server)
    assert "local" in program("models")
    assert program("-m", "local", "-o", "max_tokens", "8", QUESTION).strip()
    assert program("-m", "local", "--no-stream", "-o", "max_tokens", "8", "-c", "Go on").strip()
    logged = json.loads(program("logs", "--json", "-n", "1"))
    assert logged[0]["output_tokens"] > 0
    assert "no/such" in program("-m", "missing", QUESTION, status=1)


@scenarios
def text_completion(server: Server) -> None:
    configure(server)
    assert program("-m", "local-text", "-o", "max_tokens", "8", "One two three").strip()


@scenarios
def over_responses(server: Server) -> None:
    configure(server)
    assert program("-m", "local-responses", "-o", "max_tokens", "16", QUESTION).strip()


@scenarios
def conversation(server: Server) -> None:
    talk = model(server).conversation()
    first = talk.prompt(QUESTION, max_tokens=8)
    assert first.text() and first.usage().output == 8
    second = talk.prompt("Go on.", max_tokens=8)
    assert second.text() and second.usage().input > first.usage().input


@scenarios
def schema(server: Server) -> None:
    answer = model(server).prompt(QUESTION, schema=Weather, max_tokens=TOKENS)
    assert Weather.model_validate_json(answer.text())


@scenarios
def tool_chain(server: Server) -> None:
    """The program knows no choice but a free one. The chain is bounded, and its bound is heeded."""
    seen: list[str] = []
    chain = (
        model(server)
        .conversation()
        .chain(
            QUESTION,
            tools=[get_weather],
            chain_limit=2,
            after_call=lambda tool, call, result: seen.append(call.arguments.get("city", "")),
            options={"max_tokens": TOKENS, "temperature": 0},
        )
    )
    try:
        assert "".join(chain) or seen
    except ValueError as error:
        assert "Chain limit" in str(error) and seen
    assert all(city in CITIES for city in seen)


@scenarios
def tool_results(server: Server) -> None:
    """A call that was made, and its result, are read back."""
    given = llm.ToolResult(name="get_weather", output="Rain", tool_call_id="call_1")
    answer = model(server).prompt(
        "What do you see?", tools=[get_weather], tool_results=[given], max_tokens=8
    )
    assert answer.text() or answer.tool_calls()


@scenarios
def embeddings(server: Server) -> None:
    """Its class for embeddings has no address of its own; the package's variable gives it one."""
    os.environ["OPENAI_BASE_URL"] = server.v1
    vectors = OpenAIEmbeddingModel("local-embedding", server.embedding_model).embed_multi("ab")
    assert [len(vector) for vector in vectors] == [384, 384]


if __name__ == "__main__":
    scenarios.main()
