"""Drafts over HTTP: what of an answer was drafted is told, and a request can do without."""

from typing import Any

import pytest

from tests.api.harness import Json, ServerProcess, text_of

LOOP = "one two three four " * 6


def drafted(answer: Json) -> tuple[int, int]:
    details = answer["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


@pytest.mark.parametrize("fields", [{}, {"temperature": 1, "seed": 3}, {"logprobs": True}])
def test_the_answer_is_the_same_without(tiny: ServerProcess, fields: dict[str, Any]) -> None:
    asked = {"max_tokens": 80, "ignore_eos": True, **fields}
    answer = tiny.chat(LOOP, **asked)
    without = tiny.chat(LOOP, **asked, speculation="off")
    assert text_of(answer) == text_of(without)
    assert 0 <= drafted(answer)[0] <= answer["usage"]["completion_tokens"] == 80
    assert drafted(without) == (0, 0)


@pytest.mark.parametrize("mode", ["auto", "ngram", "draft", "heads"])
def test_a_mode_that_the_server_can_not_do_is_no_error(tiny: ServerProcess, mode: str) -> None:
    """It has no draft model, and the model no heads."""
    asked = {"max_tokens": 30, "ignore_eos": True}
    answer = tiny.chat(LOOP, **asked, speculation=mode)
    assert text_of(answer) == text_of(tiny.chat(LOOP, **asked, speculation="off"))
    if mode == "draft":
        assert drafted(answer) == (0, 0)


def test_a_completion_tells_it_as_well(tiny: ServerProcess) -> None:
    """Of all its prompts together."""
    same = {"logit_bias": {"70": 100}, "ignore_eos": True}  # one token again and again
    body = {"model": tiny.model, "prompt": [LOOP, LOOP], "max_tokens": 80, **same}
    response = tiny.http.post(f"{tiny.url}/v1/completions", json=body)
    answer: Json = response.json()
    accepted, rejected = drafted(answer)
    assert 0 < accepted <= answer["usage"]["completion_tokens"] == 160
    assert rejected >= 0


def test_other_words_are_refused(tiny: ServerProcess) -> None:
    response = tiny.post(tiny.body("Hi", speculation="on"))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "speculation"
