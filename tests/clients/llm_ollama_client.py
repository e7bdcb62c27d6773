"""simonw/llm with llm-ollama, which finds models and what they can by itself: the program and its
Python side."""

# Its package is not in the project's own environment.
# mypy: disable-error-code="import-not-found"

import os
import subprocess
import sys
from typing import Any

import llm

from tests.clients.scenario import Scenarios, Server
from tests.clients.weather import QUESTION, TOKENS, Weather

scenarios = Scenarios("llm-ollama")


def id_of(name: str) -> str:
    """What the plugin calls a model."""
    return f"ollama/{name}"


def program(server: Server, *words: str) -> str:
    configure(server)
    command = [sys.executable, "-m", "llm", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-300:]
    return done.stdout


def configure(server: Server) -> None:
    os.environ["OLLAMA_HOST"] = server.url
    os.environ["LLM_USER_PATH"] = str(server.directory)


def model(server: Server) -> Any:
    configure(server)
    return llm.get_model(id_of(server.model))


@scenarios
def the_program(server: Server) -> None:
    model = id_of(server.model)
    assert model in program(server, "models", "list")
    assert id_of(server.embedding_model) in program(server, "embed-models", "list")
    asked = ("-o", "num_predict", "8", QUESTION)
    assert program(server, "-m", model, *asked).strip()
    assert program(server, "-m", model, "--no-stream", *asked).strip()


@scenarios
def conversation(server: Server) -> None:
    talk = model(server).conversation()
    first = talk.prompt(QUESTION, num_predict=8)
    assert first.text() and first.usage().output == 8
    second = talk.prompt("Go on.", num_predict=8)
    assert second.text() and second.usage().input > first.usage().input


@scenarios
def schema(server: Server) -> None:
    answer = model(server).prompt(QUESTION, schema=Weather, num_predict=TOKENS)
    assert Weather.model_validate_json(answer.text())


@scenarios
def embeddings(server: Server) -> None:
    configure(server)
    vectors = list(llm.get_embedding_model(id_of(server.embedding_model)).embed_multi(["a", "b"]))
    assert [len(vector) for vector in vectors] == [384, 384]


if __name__ == "__main__":
    scenarios.main()
