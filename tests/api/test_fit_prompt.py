"""What is left of a conversation is a conversation, whatever it was."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.api.chat.fit_prompt import Fitter
from omlx_server.errors import ContextTooLong, TooManyTokens
from omlx_server.text.overflow import Overflow
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from tests.text import chat_templates, makers

bounded = settings(max_examples=60, deadline=None, derandomize=True)
Message = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """With a template as Qwen's."""
    path = tmp_path_factory.mktemp("qwen")
    return Tokenizer.load(makers.save(path, "byte_level", chat_templates.TOOLS))


_WORDS = st.integers(1, 25).map(lambda count: " ".join(["word"] * count))
_TURN = st.tuples(_WORDS, st.lists(st.tuples(_WORDS, st.integers(1, 2)), max_size=4), _WORDS)


def conversation(turns: Sequence[Any], *, ends_in_calls: bool) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": "Be kind."}]
    for number, (words, rounds, answer) in enumerate(turns):
        messages.append({"role": "user", "content": f"q{number} {words}"})
        for place, (result, count) in enumerate(rounds):
            ids = [f"{number}.{place}.{i}" for i in range(count)]
            function = {"name": "f", "arguments": "{}"}
            calls = [{"id": id, "type": "function", "function": function} for id in ids]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            messages += [{"role": "tool", "content": result, "tool_call_id": id} for id in ids]
        messages.append({"role": "assistant", "content": f"a{number} {answer}"})
    while messages[-1]["role"] == "assistant":
        messages.pop()
    if not ends_in_calls:
        messages.append({"role": "user", "content": "So?"})
    return messages


@pytest.mark.parametrize("policy", ["truncate", "rolling"])
@bounded
@given(
    turns=st.lists(_TURN, min_size=1, max_size=12),
    ends_in_calls=st.booleans(),
    limit=st.integers(150, 500),
)
def test_what_is_left_is_whole(
    tokenizer: Tokenizer, policy: Any, turns: list[Any], ends_in_calls: bool, limit: int
) -> None:
    template = ChatTemplate(tokenizer)

    def encode(messages: Sequence[Message], most: int) -> list[int]:
        try:
            return template.encode(messages, most=most)
        except TooManyTokens as error:
            raise ContextTooLong(limit + 50, error.at_least) from None

    messages = conversation(turns, ends_in_calls=ends_in_calls)
    fitter = Fitter(Overflow(policy, 0.5), tokenizer, limit + 50, limit, encode)
    if len(template.encode(messages)) <= limit:
        return
    try:
        fitted = fitter.fit(messages)
    except ContextTooLong:
        return
    left = fitted.messages
    assert len(template.encode(left)) <= limit
    assert fitted.dropped == len(messages) - len(left) > 0
    assert left[0] == messages[0] and left[-1] == messages[-1]
    assert left == [message for message in messages if message in left]
    last_words = [m for m in messages if m["role"] == "user"][-1]
    assert last_words in left
    called = [call["id"] for m in left for call in m.get("tool_calls", ())]
    assert called == [m["tool_call_id"] for m in left if m["role"] == "tool"]
    assert left[1]["role"] == "user"
