"""What it takes to fit a conversation of thousands of messages: counted, not timed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from omlx_server.api.chat.fit_prompt import Fitter, TemplateMessage
from omlx_server.errors import ContextTooLong, TooManyTokens
from omlx_server.text.overflow import Overflow
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from tests.api.conftest import CHATML
from tests.text import makers

CONTEXT, LIMIT = 2048, 1800


class Counted(Tokenizer):
    """Counts the characters that are encoded as texts of messages, and as prompts."""

    counted = 0
    rendered = 0

    def counts(self, texts: Sequence[str], most: int) -> list[int]:
        self.counted += sum(map(len, texts))
        return super().counts(texts, most)

    def encode_rendered(self, rendering: str, restore: Any, most: int | None = None) -> list[int]:
        self.rendered += 1
        return super().encode_rendered(rendering, restore, most)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return makers.save(tmp_path_factory.mktemp("model"), "byte_level", CHATML)


def conversation(turns: int) -> list[TemplateMessage]:
    return [
        message
        for number in range(turns)
        for message in (
            {"role": "user", "content": f"Question {number}: what comes after {number}?"},
            {"role": "assistant", "content": f"After {number} comes {number + 1}." * 2},
        )
    ][:-1]


def fitter(folder: Path, policy: Any) -> tuple[Counted, Fitter]:
    tokenizer = Counted.load(folder)
    assert isinstance(tokenizer, Counted)
    template = ChatTemplate(tokenizer)

    def encode(messages: Sequence[Mapping[str, Any]], most: int) -> list[int]:
        try:
            return template.encode(messages, most=most)
        except TooManyTokens as error:
            raise ContextTooLong(CONTEXT, error.at_least) from None

    return tokenizer, Fitter(Overflow(policy), tokenizer, CONTEXT, LIMIT, encode)


@pytest.mark.parametrize("policy", ["truncate", "rolling"])
def test_each_message_is_encoded_once_however_many_there_are(folder: Path, policy: str) -> None:
    work = []
    for turns in (500, 5000):
        messages = conversation(turns)
        tokenizer, fits = fitter(folder, policy)
        fitted = fits.fit(messages)
        assert fitted.dropped > len(messages) - 200 and len(fitted.tokens) <= LIMIT
        assert tokenizer.counted == sum(len(message["content"]) for message in messages)
        work.append(tokenizer.rendered)
    assert work[0] == work[1] <= 7


@pytest.mark.parametrize("policy", ["truncate", "rolling"])
def test_a_message_over_the_limit_costs_no_more_than_the_limit(folder: Path, policy: str) -> None:
    """The choice is that of whole counts: see the window's own test."""
    messages = conversation(40)
    messages[20] = {"role": "user", "content": "much too long " * 50_000}
    tokenizer, fits = fitter(folder, policy)
    fitted = fits.fit(messages)
    assert messages[20] not in fitted.messages and messages[-1] in fitted.messages
    assert tokenizer.counts([messages[20]["content"]], LIMIT) == [LIMIT + 1]
