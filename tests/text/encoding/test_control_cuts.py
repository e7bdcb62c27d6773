"""Cuts before control tokens: the tokens of the parts are the tokens of the whole."""

import pytest
from hypothesis import given, settings

from omlx_server.text.encoding.controls import ControlCuts
from tests.text.encoding.backends import CONTROLLED, NAMES, controlled, conversations

bounded = settings(max_examples=60, deadline=None, derandomize=True)
TEXT = "One <|im_start|>user\nTwo<|im_end|> <|im_start|>three"
CUT = ["One ", "<|im_start|>user\nTwo", "<|im_end|> ", "<|im_start|>three"]


def cuts_of(name: str) -> ControlCuts:
    tokens = controlled(name).get_added_tokens_decoder().values()
    return ControlCuts(controlled(name), [token for token in tokens if token.special])


@pytest.mark.parametrize("name", [*NAMES, *CONTROLLED])
def test_parts_have_the_tokens_of_the_whole(name: str) -> None:
    cuts, backend = cuts_of(name), controlled(name)

    @bounded
    @given(text=conversations)
    def parts(text: str) -> None:
        found = list(cuts.parts(text))
        assert "".join(found) == text
        ids = [id for part in found for id in backend.encode(part, add_special_tokens=False).ids]
        assert ids == backend.encode(text, add_special_tokens=False).ids

    parts()


@pytest.mark.parametrize("name", ["byte_level", "llama3", "o200k", "blanks on the right"])
def test_a_text_is_cut_before_each_control_token(name: str) -> None:
    assert list(cuts_of(name).parts(TEXT)) == CUT


@pytest.mark.parametrize("name", ["words apart", "blanks on the left", "trimmed"])
def test_nothing_is_cut_before_a_token_that_depends_on_its_left(name: str) -> None:
    assert list(cuts_of(name).parts(TEXT)) == ["".join(CUT[:2]), "".join(CUT[2:])]


def test_without_control_tokens_a_text_stays_whole() -> None:
    assert list(ControlCuts(controlled("byte_level"), ()).parts(TEXT)) == [TEXT]
    assert list(ControlCuts(controlled("byte_level"), ()).parts("")) == [""]
