"""Answers in channels (gpt-oss) over HTTP: a model of random weights writes anything, and no API
gives a marker, a broken call or a call that nobody may make."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.harness import UNPROBED, Json, ServerProcess, serving, stream_events
from tests.sweeps import sweep
from tests.text import makers
from tests.text.harmony import ENDS, SCHEMA, SPECIALS, TOOLS, with_channels
from tests.tiny_models import save_tiny

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}"
    "<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
NAMED = {"type": "function", "function": {"name": "f"}}
CASES: dict[str, Json] = {
    "nothing": {},
    "tools": {"tools": list(TOOLS)},
    "forbidden": {"tools": list(TOOLS), "tool_choice": "none"},
    "strict": {"tools": STRICT},
    "required": {"tools": list(TOOLS), "tool_choice": "required"},
    "named": {"tools": list(TOOLS), "tool_choice": NAMED},
    "a format": {"response_format": FORMAT},
    "a format and tools": {"response_format": FORMAT, "tools": list(TOOLS)},
}
OBEYS = [name for name in CASES if name not in ("nothing", "tools", "forbidden")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    path = makers.save(models / "org" / "harmony", "byte_level", TEMPLATE)
    backend = with_channels(makers.byte_level())
    backend.save(str(path / "tokenizer.json"))
    save_tiny(path, "gpt_oss", vocab_size=backend.get_vocab_size())
    ends = [backend.token_to_id(text) for text in ENDS]
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    home = tmp_path_factory.mktemp("harmony")
    with serving("org/harmony", home, f"models.dirs={models}", UNPROBED) as server:
        yield server


@pytest.fixture(scope="module")
def bias() -> dict[str, float]:
    """So that many headers come, and many ends."""
    backend = with_channels(makers.byte_level())
    return {str(backend.token_to_id(text)): 4.0 for text in SPECIALS}


def check(case: str, text: str, thought: str, calls: list[tuple[str, str]], cut: bool) -> None:
    assert not any(marker in text + thought for marker in SPECIALS), (text, thought)
    given = [(name, json.loads(arguments)) for name, arguments in calls]
    if "tools" not in CASES[case] or case == "forbidden":
        assert not calls
    if cut or case not in OBEYS:
        return
    for name, arguments in given:
        assert name in ("f", "get_weather") and arguments.keys() == {"city", "days"}
    if case in ("required", "named"):
        assert len(given) == 1 and not text
    if case == "named":
        assert given[0][0] == "f"
    if case.startswith("a format") and not calls:
        assert json.loads(text).keys() == {"city", "days"}


@pytest.mark.parametrize(("case", "seed"), sweep(CASES, range(3)))
def test_chat(server: ServerProcess, bias: dict[str, float], case: str, seed: int) -> None:
    asked: Json = {"temperature": 2, "seed": seed, "max_tokens": 120, "logit_bias": bias}
    asked |= CASES[case] | ({"thinking_budget": 8} if case in OBEYS else {})
    choice = server.chat("Hi", **asked)["choices"][0]
    message = choice["message"]
    text, thought = message["content"] or "", message.get("reasoning_content", "")
    calls = [call["function"] for call in message.get("tool_calls", [])]
    pairs = [(call["name"], call["arguments"]) for call in calls]
    check(case, text, thought, pairs, choice["finish_reason"] == "length")
    events = stream_events(server.post(server.body("Hi", stream=True, **asked)).text)
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == thought
    written = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert "".join(call["function"].get("arguments", "") for call in written) == "".join(
        arguments for _, arguments in pairs
    )


@pytest.mark.parametrize(
    ("case", "turn"), sweep(("tools", "forbidden", "strict", "required", "named"), range(3))
)
def test_messages(server: ServerProcess, case: str, turn: int) -> None:
    """Of Anthropic's API."""
    tools = [{"name": t["function"]["name"], "input_schema": SCHEMA} for t in TOOLS]
    choice: Json = {
        "forbidden": {"type": "none"},
        "required": {"type": "any"},
        "named": {"type": "tool", "name": "f"},
    }.get(case, {"type": "auto"})
    answer = _post(
        server,
        "/v1/messages",
        messages=[{"role": "user", "content": f"Hi {turn}"}],
        max_tokens=120,
        temperature=1,
        tools=[{**tool, **({"strict": True} if case == "strict" else {})} for tool in tools],
        tool_choice=choice,
    )
    blocks = answer["content"]
    text = "".join(b["text"] for b in blocks if b["type"] == "text")
    thought = "".join(b["thinking"] for b in blocks if b["type"] == "thinking")
    calls = [(b["name"], json.dumps(b["input"])) for b in blocks if b["type"] == "tool_use"]
    check(case, text, thought, calls, answer["stop_reason"] == "max_tokens")


@pytest.mark.parametrize(("case", "turn"), sweep(CASES, range(3)))
def test_responses(server: ServerProcess, case: str, turn: int) -> None:
    fields = CASES[case]
    tools = [{"type": "function", **tool["function"]} for tool in fields.get("tools", [])]
    choice = fields.get("tool_choice", "auto")
    choice = {"type": "function", "name": "f"} if choice == NAMED else choice
    form = {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}
    answer = _post(
        server,
        "/v1/responses",
        input=f"Hi {turn}",
        max_output_tokens=120,
        temperature=2,
        store=False,
        **({"tools": tools, "tool_choice": choice} if tools else {}),
        **(form if "response_format" in fields else {}),
    )
    output = answer["output"]
    said = [part for o in output if o["type"] == "message" for part in o["content"]]
    thoughts = [p for o in output if o["type"] == "reasoning" for p in o.get("content") or []]
    calls = [(o["name"], o["arguments"]) for o in output if o["type"] == "function_call"]
    text, thought = ("".join(p["text"] for p in parts) for parts in (said, thoughts))
    check(case, text, thought, calls, answer["status"] == "incomplete")


def _post(server: ServerProcess, path: str, **body: Any) -> Json:
    answer = server.http.post(f"{server.url}{path}", json={"model": server.model, **body})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found
