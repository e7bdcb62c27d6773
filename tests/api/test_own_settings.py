"""What one model has otherwise than others, over HTTP; and metrics that are switched off."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.harness import Json, ServerProcess, serving

CONTEXT = 200
OWN = {
    "thinker": {"context_length": CONTEXT, "chat_template_kwargs": {"enable_thinking": False}},
    "small": {"sampling": {"temperature": 0, "max_tokens": 7}},
}
ON: Json = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.fixture(scope="module")
def server(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sets = (
        f"models.dirs={tiny_models}",
        f"models.overrides={json.dumps(OWN)}",
        'models.aliases={"small": "org/thinker"}',
        "memory.activation_reserve=64MB",
        "scheduler.policy=fcfs",
        "metrics.enabled=false",
    )
    with serving("org/thinker", tmp_path_factory.mktemp("own"), *sets) as server:
        yield server


def ask(server: ServerProcess, **fields: object) -> Json:
    """Without what the override says."""
    messages = [{"role": "user", "content": "Hi"}]
    response = server.post(
        {"model": server.model, "messages": messages, "ignore_eos": True} | fields
    )
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def thinks(answer: Json) -> bool:
    return bool(answer["choices"][0]["message"].get("reasoning_content"))


def test_what_a_request_leaves_out_is_as_the_override_says(server: ServerProcess) -> None:
    first, second = ask(server), ask(server)
    assert first["usage"]["completion_tokens"] == 7
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    assert ask(server, max_tokens=3)["usage"]["completion_tokens"] == 3
    others = [ask(server, temperature=1.5, seed=seed) for seed in range(3)]
    assert any(other["choices"][0]["message"] != first["choices"][0]["message"] for other in others)


@pytest.mark.parametrize("fields", [ON, {"reasoning_effort": "high"}])
def test_variables_of_the_template_are_those_of_the_request_first(
    server: ServerProcess, fields: Json
) -> None:
    assert not thinks(ask(server))
    assert thinks(ask(server, **fields))


def test_its_context_is_shorter(server: ServerProcess) -> None:
    long = [{"role": "user", "content": "word " * CONTEXT}]
    refused = server.post({"model": server.model, "messages": long})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (
        error["code"] == "context_length_exceeded" and f"length is {CONTEXT} " in error["message"]
    )


def test_metrics_that_are_off_are_not_there(server: ServerProcess) -> None:
    assert server.http.get(f"{server.url}/metrics").status_code == 404
    assert "/metrics" not in server.http.get(f"{server.url}/openapi.json").json()["paths"]


def test_an_unknown_parser_ends_the_start_before_the_model_loads(
    tiny_models: Path, tmp_path: Path
) -> None:
    own = json.dumps({"tiny": {"tool_parser": "qwen_coder"}})
    sets = (f"models.dirs={tiny_models}", f"models.overrides={own}")
    server = ServerProcess("org/tiny", tmp_path, sets)
    try:
        assert server.wait(60) == 2
        assert "can't be qwen_coder" in server.log and "did you mean qwen3_coder?" in server.log
    finally:
        server.kill()
