"""Conversations that outgrow the context, over HTTP: what is left out, and what that costs."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.conftest import CHATML
from tests.api.harness import UNPROBED, Json, ServerProcess, assert_envelope, serving, text_of
from tests.text import makers
from tests.tiny_models import save_tiny

CONTEXT = 1024
TURNS = 24
SYSTEM = "You are a careful assistant. " + "Be kind, be brief, be right. " * 10
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model with a context of 1,024 tokens."""
    models = tmp_path_factory.mktemp("models")
    path = makers.save(models / "org" / "small", "byte_level", CHATML)
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(path, "llama", vocab_size=vocab, max_position_embeddings=CONTEXT)
    sets = [f"models.dirs={models}", UNPROBED, "cache.hot_cache_only=true"]
    with serving("org/small", tmp_path_factory.mktemp("small"), *sets) as server:
        yield server


def turn(number: int) -> list[Json]:
    """The user's words; every third time there were calls before."""
    said = {"role": "user", "content": f"Question {number}: what comes after {number}, and why?"}
    if number % 3:
        return [said]
    return [
        said,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": f"result {number}"},
    ]


def ask(server: ServerProcess, messages: list[Json], **fields: Any) -> Json:
    body = {"model": "small", "messages": messages, "max_tokens": 24, "temperature": 0}
    response = server.post(body | {"ignore_eos": True} | fields)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    answer["dropped"] = int(response.headers.get("x-omlx-dropped-messages", 0))
    return answer


def conversation(server: ServerProcess, policy: str) -> list[Json]:
    """The answers of all turns; each is asked with the whole history."""
    history: list[Json] = [{"role": "system", "content": SYSTEM}]
    answers = []
    for number in range(TURNS):
        history += turn(number)
        answers.append(ask(server, history, context_overflow=policy, cache_salt=policy))
        history.append({"role": "assistant", "content": text_of(answers[-1])})
    return answers


def prefilled(answer: Json) -> int:
    usage = answer["usage"]
    return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])


def test_many_turns_cost_a_fraction(small: ServerProcess) -> None:
    rolling, truncate = conversation(small, "rolling"), conversation(small, "truncate")
    grown = [i for i, answer in enumerate(truncate) if answer["dropped"]]
    assert 10 < len(grown) < TURNS - 5
    cost = sum(prefilled(rolling[i]) for i in grown)
    one_by_one = sum(prefilled(truncate[i]) for i in grown)
    everything = sum(truncate[i]["usage"]["prompt_tokens"] for i in grown)
    assert cost <= 0.15 * everything, (cost, everything)
    assert cost <= 0.25 * one_by_one, (cost, one_by_one)
    assert all(answer["usage"]["prompt_tokens"] < CONTEXT for answer in rolling + truncate)
    last = rolling[-1]["dropped"]
    assert last > 0
    details = rolling[-1]["usage"]["prompt_tokens_details"]
    assert details["dropped_messages"] == last


def test_warm_equals_cold_behind_a_cut(small: ServerProcess) -> None:
    history: list[Json] = [{"role": "system", "content": SYSTEM}]
    for number in range(TURNS):
        history += turn(number)
        if number < TURNS - 1:
            history.append({"role": "assistant", "content": f"Because of {number}." * 3})
    first = ask(small, history, context_overflow="rolling", cache_salt="warm")
    warm = ask(small, history, context_overflow="rolling", cache_salt="warm")
    cold = ask(small, history, context_overflow="rolling", cache_salt="cold")
    assert text_of(first) == text_of(warm) == text_of(cold)
    assert prefilled(warm) < 70 < prefilled(cold)


def test_by_default_it_is_refused(small: ServerProcess) -> None:
    answer = {"role": "assistant", "content": "So it is."}
    history = [m for number in range(200) for m in (*turn(number * 3 + 1), answer)][:-1]
    body = {"model": "small", "messages": history, "max_tokens": 4}
    error = assert_envelope(small.post(body), 400)
    assert error["code"] == "context_length_exceeded"
    assert str(CONTEXT) in error["message"]
    assert ask(small, history, context_overflow="rolling")["dropped"] > 0


@pytest.mark.parametrize("policy", ["truncate", "rolling"])
def test_what_must_stay_can_be_too_much(small: ServerProcess, policy: str) -> None:
    for messages in (
        [{"role": "user", "content": "Hi"}, {"role": "user", "content": "too long " * 3000}],
        [{"role": "system", "content": "too long " * 3000}, {"role": "user", "content": "Hi"}],
    ):
        body = {"model": "small", "messages": messages, "context_overflow": policy}
        error = assert_envelope(small.post(body), 400)
        assert error["code"] == "context_length_exceeded"


def test_a_short_conversation_is_left_alone(small: ServerProcess) -> None:
    plain = ask(small, turn(3))
    for policy in ("truncate", "rolling"):
        answer = ask(small, turn(3), context_overflow=policy)
        assert answer["dropped"] == 0 and text_of(answer) == text_of(plain)
        assert "dropped_messages" not in answer["usage"]["prompt_tokens_details"]
