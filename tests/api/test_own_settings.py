"""What one model has otherwise than others, over HTTP: defaults, presets, a template; and metrics
that are switched off."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import Json, ServerProcess, serving

CONTEXT = 200
SYSTEM = "Be brief."
CONFIG = f"""
[models]
aliases = {{ small = "org/thinker" }}

[models.overrides.thinker]
context_length = {CONTEXT}
system = "{SYSTEM}"
chat_template_kwargs = {{ enable_thinking = false }}

[models.overrides.small]
sampling = {{ temperature = 0, max_tokens = 7 }}

[models.overrides."org/thinker".presets.coder]
system = "You write code."
temperature = 0.9
top_k = 40
presence_penalty = 0.5
seed = 11
max_tokens = 12
stop = ["q"]
reasoning_effort = "high"

[models.overrides."org/thinker".presets.bare]
system = ""
max_tokens = 0

[models.overrides."org/tiny"]
chat_template = "short.jinja"
"""
CODER: Json = {
    "temperature": 0.9,
    "top_k": 40,
    "presence_penalty": 0.5,
    "seed": 11,
    "stop": ["q"],
}
SHORT = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
HI = [{"role": "user", "content": "Hi"}]
ON: Json = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.fixture(scope="module")
def server(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sets = (
        f"models.dirs={tiny_models}",
        "memory.activation_reserve=64MB",
        "scheduler.policy=fcfs",
        "cache.block_tokens=16",
        "metrics.enabled=false",
    )
    directory = tmp_path_factory.mktemp("own")
    (directory / "short.jinja").write_text(SHORT)
    with serving("org/thinker", directory, *sets, config=CONFIG) as server:
        yield server


def ask(server: ServerProcess, **fields: object) -> Json:
    """Without what the override says."""
    return send(server, "/v1/chat/completions", {"messages": HI, "ignore_eos": True} | fields)


def send(server: ServerProcess, path: str, body: Json) -> Json:
    response = server.http.post(f"{server.url}{path}", json={"model": server.model} | body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def refused(server: ServerProcess, path: str, body: Json) -> Json:
    response = server.http.post(f"{server.url}{path}", json={"model": server.model} | body)
    assert response.status_code == 400, response.text
    error: Json = response.json()["error"]
    return error


def tokens(server: ServerProcess, messages: list[Any], **fields: Any) -> list[int]:
    found: list[int] = send(server, "/tokenize", {"messages": messages, **fields})["tokens"]
    return found


def thinks(answer: Json) -> bool:
    return bool(answer["choices"][0]["message"].get("reasoning_content"))


def test_what_a_request_leaves_out_is_as_the_override_says(server: ServerProcess) -> None:
    first, second = ask(server), ask(server)
    assert first["usage"]["completion_tokens"] == 7
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    assert ask(server, max_tokens=3)["usage"]["completion_tokens"] == 3
    others = [ask(server, temperature=1.5, seed=seed) for seed in range(3)]
    assert any(other["choices"][0]["message"] != first["choices"][0]["message"] for other in others)


@pytest.mark.parametrize("fields", [ON, {"reasoning_effort": "high"}, {"preset": "coder"}])
def test_variables_of_the_template_are_those_of_the_request_first(
    server: ServerProcess, fields: Json
) -> None:
    assert not thinks(ask(server))
    assert thinks(ask(server, **fields))
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert not thinks(ask(server, **fields | off))


def test_its_context_is_shorter(server: ServerProcess) -> None:
    long = [{"role": "user", "content": "word " * CONTEXT}]
    error = refused(server, "/v1/chat/completions", {"messages": long})
    assert (
        error["code"] == "context_length_exceeded" and f"length is {CONTEXT} " in error["message"]
    )


def test_metrics_that_are_off_are_not_there(server: ServerProcess) -> None:
    assert server.http.get(f"{server.url}/metrics").status_code == 404
    assert "/metrics" not in server.http.get(f"{server.url}/openapi.json").json()["paths"]


# --- Presets -------------------------------------------------------------------------------------

_SAID = [{"role": "system", "content": "You write code."}, *HI]
SAME = [
    (
        "/v1/chat/completions",
        {"messages": HI},
        {"messages": _SAID, "reasoning_effort": "high", "max_tokens": 12} | CODER,
    ),
    (
        "/v1/responses",
        {"input": "Hi"},
        {
            "input": "Hi",
            "instructions": "You write code.",
            "reasoning": {"effort": "high"},
            "max_output_tokens": 12,
        }
        | CODER,
    ),
    ("/v1/completions", {"prompt": "Hi " * 20}, {"prompt": "Hi " * 20, "max_tokens": 12} | CODER),
]


@pytest.mark.parametrize(("path", "bare", "whole"), SAME, ids=[path for path, _, _ in SAME])
def test_a_preset_gives_what_the_same_values_written_out_give(
    server: ServerProcess, path: str, bare: Json, whole: Json
) -> None:
    cold, warm = (send(server, path, bare | {"preset": "coder"}) for _ in range(2))
    written = send(server, path, whole)
    assert told(cold) == told(warm) == told(written)
    assert counted(written) == counted(warm) and counted(warm)[-1] > 0
    assert told(send(server, path, whole | {"seed": 12})) != told(written), "the seed counts"
    assert told(send(server, path, bare)) != told(written)


def test_a_preset_of_a_message_is_the_same_written_out(server: ServerProcess) -> None:
    bare = {"messages": HI, "max_tokens": 12}
    whole = bare | {
        "system": "You write code.",
        "temperature": 0.9,
        "top_k": 40,
        "seed": 11,
        "stop_sequences": ["q"],
        "output_config": {"effort": "high"},
    }
    count = send(server, "/v1/messages/count_tokens", {"messages": HI, "preset": "coder"})
    first = send(server, "/v1/messages", bare | {"preset": "coder"})
    second = send(server, "/v1/messages", whole | {"preset": "coder"})
    usage = first["usage"]
    assert first["content"] == second["content"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count["input_tokens"]
    assert send(server, "/v1/messages", whole)["usage"] == second["usage"]


def counted(answer: Json) -> list[int]:
    """Tokens of the prompt, of the answer, and cached ones. What was drafted may differ."""
    usage = answer["usage"]
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    chats = "prompt_tokens" in usage
    names = ("prompt_tokens", "completion_tokens") if chats else ("input_tokens", "output_tokens")
    return [*(int(usage[name]) for name in names), int(details["cached_tokens"])]


def told(answer: Json) -> object:
    """What the model has said, whatever the API."""
    choices = answer.get("choices")
    if choices is None:
        return [(one["type"], one["content"]) for one in answer["output"]]
    return [one.get("message") or one["text"] for one in choices]


def test_the_system_prompt_is_for_conversations_that_begin_without_one(
    server: ServerProcess,
) -> None:
    own, other = ({"role": "system", "content": text} for text in (SYSTEM, "Other."))
    assert tokens(server, HI) == tokens(server, [own, *HI])
    assert tokens(server, HI, preset="coder") == tokens(
        server, _SAID, chat_template_kwargs={"enable_thinking": True}
    )
    plain = tokens(server, HI, preset="bare")
    empty = tokens(server, [{"role": "system", "content": ""}, *HI])
    assert tokens(server, [other, *HI], preset="coder") == tokens(
        server, [other, *HI], chat_template_kwargs={"enable_thinking": True}
    )
    assert empty == tokens(server, [{"role": "developer", "content": ""}, *HI])
    assert len(plain) < len(empty) < len(tokens(server, HI))
    late = [*HI, {"role": "assistant", "content": "a"}, other, *HI]
    assert tokens(server, late) == tokens(server, [own, *late])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": HI, "max_tokens": 2, "system": ""}),
        ("/v1/responses", {"input": "Hi", "instructions": "", "max_output_tokens": 2}),
    ],
)
def test_an_empty_system_prompt_is_one(server: ServerProcess, path: str, body: Json) -> None:
    usage = send(server, path, body)["usage"]
    prompt = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
    assert prompt == len(tokens(server, [{"role": "system", "content": ""}, *HI]))


def test_the_request_wins_over_the_preset_and_the_preset_over_the_override(
    server: ServerProcess,
) -> None:
    bare = ask(server, preset="bare", max_tokens=20)
    assert bare["usage"]["completion_tokens"] == 20
    assert ask(server, preset="bare")["usage"]["completion_tokens"] > 20, "no limit"
    fields = {"seed": 3, "temperature": 1.2, "stop": [], "max_tokens": 9}
    one, other = (ask(server, preset="coder", **fields | more) for more in ({}, {"seed": 4}))
    assert one["usage"]["completion_tokens"] == 9 and told(one) != told(other)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/responses/input_tokens", {"input": "Hi"}),
        ("/v1/messages", {"messages": HI, "max_tokens": 2}),
        ("/tokenize", {"messages": HI}),
    ],
)
def test_an_unknown_preset_is_refused_with_the_names(
    server: ServerProcess, path: str, body: Json
) -> None:
    error = refused(server, path, body | {"preset": "writer"})
    assert error["message"] == "org/thinker has no preset 'writer': it has coder, bare"
    if path != "/v1/messages":
        assert error["param"] == "preset"
    error = refused(server, path, body | {"preset": "coder", "model": "org/tiny"})
    assert error["message"] == "org/tiny has no preset 'coder': it has none"


def test_the_list_of_models_names_presets_and_defaults(server: ServerProcess) -> None:
    for path in ("/v1/models/small", "/v1/models/org/thinker"):
        model = server.http.get(f"{server.url}{path}").json()
        assert model["presets"] == ["coder", "bare"]
        assert model["default_parameters"]["temperature"] == 0
        assert model["default_parameters"]["max_tokens"] == 7
    other = server.http.get(f"{server.url}/v1/models/org/tiny").json()
    assert other["presets"] == [] and other["default_parameters"]["temperature"] == 1
    assert "max_tokens" not in other["default_parameters"]


# --- A template ----------------------------------------------------------------------------------


def test_a_template_stands_for_the_models_own_and_is_read_at_each_load(
    server: ServerProcess,
) -> None:
    file = server.config.with_name("short.jinja")
    file.write_text(SHORT.replace("endfor", "endif"))
    response = server.post({"model": "org/tiny", "messages": HI, "max_tokens": 2})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (500, "model_load_failed")
    assert f"models.overrides.org/tiny.chat_template: {file}, line 2: " in error["message"]
    file.write_text(SHORT)
    shown = send(server, "/tokenize", {"model": "org/tiny", "messages": HI})
    text = send(server, "/tokenize", {"model": "org/tiny", "prompt": "[user] Hi\n"})
    assert shown["tokens"] == text["tokens"]


def test_a_broken_template_ends_the_start_before_the_model_loads(
    tiny_models: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}\n{{ messages[1].content }}")
    own = json.dumps({"tiny": {"chat_template": "own.jinja"}})
    sets = (f"models.dirs={tiny_models}", f"models.overrides={own}")
    server = ServerProcess("org/tiny", tmp_path, sets)
    try:
        assert server.wait(60) == 2
        assert "models.overrides.tiny.chat_template: own.jinja, line 2: the chat" in server.log
        assert "Traceback" not in server.log
    finally:
        server.kill()
