"""That the judges of answers see what is wrong, and that there is one for every route."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.api.harness import REPO
from tests.api.published import shapes
from tests.api.published.documents import OPENAI, fits
from tests.api.published.judge import rule_of
from tests.api.published.ours import OURS
from tests.api.routes import routes

Json = dict[str, Any]
WRONG = (AssertionError, ValidationError)

USAGE: Json = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
CHAT: Json = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": USAGE,
    "service_tier": "default",
    "system_fingerprint": "fp_1",
}


def test_a_good_answer_passes() -> None:
    shapes.chat(CHAT)


@pytest.mark.parametrize("name", ["id", "object", "created", "model", "choices"])
def test_a_field_that_is_missing_is_seen(name: str) -> None:
    with pytest.raises(WRONG):
        shapes.chat({key: value for key, value in CHAT.items() if key != name})


@pytest.mark.parametrize(
    "wrong",
    [
        {"service_tier": None},
        {"system_fingerprint": None},
        {"created": "1"},
        {"surprise": 1},
        {"usage": {**USAGE, "surprise": 1}},
        {"choices": [{**CHAT["choices"][0], "finish_reason": "tired"}]},
    ],
)
def test_what_is_wrong_is_seen(wrong: Json) -> None:
    with pytest.raises(WRONG):
        shapes.chat({**CHAT, **wrong})


def test_null_is_for_fields_that_may_be_null() -> None:
    fits(CHAT, OPENAI, "CreateChatCompletionResponse")
    choice = {**CHAT["choices"][0], "message": {"role": None, "content": None, "refusal": None}}
    with pytest.raises(AssertionError, match="role"):
        fits({**CHAT, "choices": [choice]}, OPENAI, "CreateChatCompletionResponse")


@pytest.mark.parametrize(("method", "path"), routes())
def test_every_route_is_held_to_something_or_our_own(method: str, path: str) -> None:
    rule_of(method, path)


def test_a_route_that_is_not_known_has_no_rule() -> None:
    with pytest.raises(AssertionError, match="say in _RULES"):
        rule_of("POST", "/v1/audio/speech")


@pytest.mark.parametrize("name", [name for name, place in OURS.items() if ".md" in place])
def test_what_is_ours_is_documented(name: str) -> None:
    page = Path(REPO / OURS[name]).read_text(encoding="utf-8")
    assert f"`{name.rpartition('.')[2]}`" in page
