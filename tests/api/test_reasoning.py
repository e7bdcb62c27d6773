"""Thoughts over HTTP: apart from the content, of bounded length, before constrained answers."""

import json
from typing import Any

import pytest

from tests.api.harness import Json, ServerProcess, stream_events, text_of

OFF = {"chat_template_kwargs": {"enable_thinking": False}}
FORM = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        },
    }
}


def message(answer: Json) -> Json:
    found: Json = answer["choices"][0]["message"]
    return found


def reasoning_tokens(answer: Json) -> int:
    return int(answer["usage"]["completion_tokens_details"]["reasoning_tokens"])


def test_a_thought_without_an_end_is_no_content(thinker: ServerProcess) -> None:
    answer = thinker.chat("Hi", max_tokens=12, ignore_eos=True)
    assert message(answer)["content"] == "" and message(answer)["reasoning_content"]
    assert message(answer)["reasoning"] == message(answer)["reasoning_content"]
    assert reasoning_tokens(answer) == answer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("budget", [0, 1, 9])
def test_a_budget_ends_the_thought(thinker: ServerProcess, budget: int) -> None:
    free = thinker.chat("Hi", max_tokens=60, ignore_eos=True)
    answer = thinker.chat("Hi", max_tokens=60, ignore_eos=True, thinking_budget=budget)
    thought = message(answer).get("reasoning_content", "")
    assert message(free)["reasoning_content"].startswith(thought)
    assert message(answer)["content"] and "</think>" not in text_of(answer)
    # What ends it is counted as well: the marker, in a vocabulary that has no token for it.
    assert budget <= reasoning_tokens(answer) <= budget + len("\n</think>")
    assert answer["usage"]["completion_tokens"] == 60


def test_a_stream_tells_the_thought_first(thinker: ServerProcess) -> None:
    asked: Json = {"max_tokens": 40, "ignore_eos": True, "thinking_budget": 8}
    whole = message(thinker.chat("Hi", **asked))
    events = stream_events(thinker.post(thinker.body("Hi", stream=True, **asked)).text)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == whole["reasoning_content"]
    assert "".join(d.get("reasoning", "") for d in deltas) == whole["reasoning_content"]
    assert "".join(d.get("content", "") for d in deltas) == whole["content"]
    kinds = ["thought" if "reasoning" in d else "text" for d in deltas[1:] if d]
    assert kinds == sorted(kinds, reverse=True) and len(set(kinds)) == 2


@pytest.mark.parametrize(
    "fields", [OFF, {"reasoning_effort": "none"}, {"reasoning_effort": "minimal"}]
)
def test_thinking_can_be_switched_off(thinker: ServerProcess, fields: Json) -> None:
    answer = thinker.chat("Hi", max_tokens=8, ignore_eos=True, **fields)
    assert message(answer)["content"] and "reasoning_content" not in message(answer)
    assert reasoning_tokens(answer) == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_thought_goes_before_what_a_grammar_allows(thinker: ServerProcess, seed: int) -> None:
    asked: dict[str, Any] = {"temperature": 2, "seed": seed, "max_tokens": 100, **FORM}
    answer = thinker.chat("Hi", thinking_budget=10, **asked)
    assert len(message(answer)["reasoning_content"]) > 1
    assert isinstance(json.loads(text_of(answer)), list)
    without = thinker.chat("Hi", **asked, **OFF)
    assert isinstance(json.loads(text_of(without)), list)
    assert "reasoning_content" not in message(without)


def test_a_thought_goes_before_a_call(thinker: ServerProcess) -> None:
    tool = {"type": "function", "function": {"name": "now"}}
    answer = thinker.chat(
        "Hi", tools=[tool], tool_choice="required", thinking_budget=6, max_tokens=200
    )
    assert message(answer)["reasoning_content"]
    assert message(answer)["tool_calls"][0]["function"]["name"] == "now"


def test_stops_and_logprobs_pass_over_thoughts(thinker: ServerProcess) -> None:
    asked: Json = {"max_tokens": 60, "ignore_eos": True, "thinking_budget": 12}
    whole = thinker.chat("Hi", logprobs=True, **asked)
    thought, content = message(whole)["reasoning_content"], text_of(whole)
    logged = whole["choices"][0]["logprobs"]["content"]
    text = b"".join(bytes(entry["bytes"]) for entry in logged).decode(errors="replace")
    assert text.strip() == content.strip()
    letter = next(c for c in thought if c.isalnum() and c in content)
    stopped = thinker.chat("Hi", stop=[letter], **asked)
    assert message(stopped)["reasoning_content"] == thought
    assert text_of(stopped) == content.partition(letter)[0]


def test_a_past_thought_is_not_part_of_the_next_prompt(thinker: ServerProcess) -> None:
    def prompt_tokens(content: str, **fields: str) -> int:
        turns = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": content, **fields},
            {"role": "user", "content": "So?"},
        ]
        body = {"model": "thinker", "messages": turns, "max_tokens": 1}
        return int(thinker.post(body).json()["usage"]["prompt_tokens"])

    plain = prompt_tokens("Hello.")
    assert prompt_tokens("Hello.", reasoning_content="Long, long thought.") == plain
    assert prompt_tokens("<think>\nLong, long thought.\n</think>Hello.") == plain


def test_a_prefilled_answer_can_begin_within_a_thought(thinker: ServerProcess) -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    body = {
        "model": "thinker",
        "messages": turns,
        "max_tokens": 6,
        "continue_final_message": True,
        "add_generation_prompt": False,
        "ignore_eos": True,
    }
    answer = thinker.post(body).json()
    assert text_of(answer) and "reasoning" not in message(answer)
