"""Messages of any API as chat templates expect them."""

from pathlib import Path

import pytest

import omlx_server
from omlx_server.text.templates.messages import (
    Message,
    neutral_message,
    with_reasoning,
    without_empty_systems,
)

BILLING = "x-anthropic-billing-header: 17"
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("role", "texts", "expected"),
    [
        ("user", ["a", "b"], {"role": "user", "content": "ab"}),
        ("developer", ["a"], {"role": "system", "content": "a"}),
        ("system", [BILLING, "a"], {"role": "system", "content": "a"}),
        ("developer", [BILLING], {"role": "system", "content": ""}),
        ("user", [BILLING], {"role": "user", "content": BILLING}),
    ],
)
def test_a_message_is_one_string(role: str, texts: list[str], expected: Message) -> None:
    assert neutral_message(role, texts, {}) == expected


def test_what_templates_know_of_a_message_goes_along() -> None:
    given = {"name": "me", "reasoning": None, "tool_calls": [CALL], "refusal": "no"}
    message = neutral_message("assistant", [], given)
    assert message == {"role": "assistant", "content": "", "name": "me", "tool_calls": [CALL]}
    assert "tool_calls" not in neutral_message("assistant", [], {"tool_calls": []})


def test_a_system_that_says_nothing_stays_only_alone_in_front() -> None:
    """There it keeps away the persona that some templates have."""
    empty, hello = {"role": "system", "content": ""}, {"role": "user", "content": ""}
    told = {"role": "system", "content": "x"}
    for messages, expected in [
        ([empty, hello], [empty, hello]),
        ([empty], [empty]),
        ([empty, empty, hello], [empty, hello]),
        ([empty, told, hello], [told, hello]),
        ([told, empty, hello, empty], [told, hello]),
        ([hello, empty], [hello]),
        ([], []),
    ]:
        assert without_empty_systems(messages) == expected


def test_one_file_tells_which_texts_say_nothing() -> None:
    """Another one that did would one day make other prompts, and so other keys of the cache."""
    package = Path(omlx_server.__file__).parent
    named = [p for p in package.rglob("*.py") if "billing-header" in p.read_text("utf-8")]
    assert named == [package / "text" / "templates" / "messages.py"]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_have_every_name_that_a_template_may_read(name: str) -> None:
    message = with_reasoning({"role": "assistant", "content": "", name: "x"})
    assert message["thinking"] == message["reasoning_content"] == "x"
