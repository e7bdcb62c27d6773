"""Fields of a chat at their bounds: what is taken, and how a refusal names what is wrong."""

from typing import Any

import pytest

from tests.api.harness import ServerProcess, assert_envelope, text_of


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_minus_one_is_no_limit(tiny: ServerProcess, name: str) -> None:
    answer = tiny.chat("Go", **{name: -1}, guided_regex="[ab]{40}")
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(text_of(answer)) == 40


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt_logprobs": 5}, "prompt_logprobs"),
        ({"logit_bias": {"5": 1, "the": 2}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "99999999": 2}}, "logit_bias.99999999"),
        ({"logit_bias": {"5": 1, "7": 101}}, "logit_bias.7"),
        ({"structured_outputs": {"grammar": " "}}, "structured_outputs.grammar"),
        ({"guided_grammar": ""}, "guided_grammar"),
    ],
)
def test_what_is_wrong_is_named(tiny: ServerProcess, fields: dict[str, Any], param: str) -> None:
    response = tiny.post(tiny.body("Go", **fields))
    assert_envelope(response, 400)
    assert response.json()["error"]["param"] == param


def test_a_key_that_is_no_token_is_told_by_its_place(tiny: ServerProcess) -> None:
    """What a client wrote is never told back."""
    response = tiny.post(tiny.body("Go", logit_bias={"5": 1, "the": 2}))
    assert "key 2 is no number" in response.json()["error"]["message"]
