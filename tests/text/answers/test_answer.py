"""The text of a choice, and tokens as logprobs show them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.text.answers.answer import AnswerParser, piece_entry, text_of, token_entry
from omlx_server.text.answers.form import AnswerForm
from omlx_server.text.tokenizer import Tokenizer
from tests.text import makers
from tests.text.conftest import Load

bounded = settings(max_examples=100, deadline=None, derandomize=True)
families = pytest.mark.parametrize("family", makers.GENERATIVE)


def run(answer: AnswerParser, ids: list[int]) -> str:
    shown = [text_of(answer.add(token_id).parts) for token_id in ids]
    return "".join(shown) + text_of(answer.finish())


def wave(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode("Hi 👋!")


@families
@bounded
@given(ids=st.lists(st.integers(0, 430), max_size=20))
def test_without_a_stop_it_is_the_decoding(load: Load, family: str, ids: list[int]) -> None:
    tokenizer = load(family)
    answer = AnswerParser(tokenizer, AnswerForm(("never in the text",)))
    assert run(answer, ids) == tokenizer.decode(ids)
    assert answer.stopped is None


@families
@bounded
@given(ids=st.lists(st.integers(0, 430), max_size=20), stops=st.lists(st.text("aeo ", min_size=1)))
def test_a_stop_cuts_the_decoding(
    load: Load, family: str, ids: list[int], stops: list[str]
) -> None:
    tokenizer = load(family)
    answer = AnswerParser(tokenizer, AnswerForm(tuple(stops)))
    shown = run(answer, ids)
    assert tokenizer.decode(ids).startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert (answer.stopped is not None) == any(stop in tokenizer.decode(ids) for stop in stops)


@families
def test_the_stop_is_told_once_found_and_can_be_kept(load: Load, family: str) -> None:
    tokenizer = load(family)
    ids = tokenizer.encode("Hello world, hello there!")
    answer = AnswerParser(tokenizer, AnswerForm(("rld, h",), include_stop=True))
    assert run(answer, ids) == "Hello world, h"
    assert answer.stopped == "rld, h"


def test_the_held_rest_can_complete_a_stop(load: Load) -> None:
    tokenizer = load("byte_level")
    answer = AnswerParser(tokenizer, AnswerForm(("i \ufffd",)))
    deltas = [answer.add(token_id) for token_id in wave(tokenizer)[:-2]]
    stopped_before = answer.stopped
    assert answer.finish() == ()
    assert stopped_before is None
    assert answer.stopped == "i \ufffd"
    assert "".join(text_of(delta.parts) for delta in deltas) == "H"


@families
@bounded
@given(text=st.text(max_size=20))
def test_the_bytes_of_entries_join_to_the_content(load: Load, family: str, text: str) -> None:
    tokenizer = load(family)
    answer = AnswerParser(tokenizer, AnswerForm())
    ids = tokenizer.encode(text, special=False)
    deltas = [answer.add(token_id) for token_id in ids]
    content = "".join(text_of(delta.parts) for delta in deltas) + text_of(answer.finish())
    entries = [piece_entry(delta.piece, -1.0) for delta in deltas]
    assert bytes(byte for entry in entries for byte in entry.bytes) == content.encode()


def test_a_cut_character_is_shown_as_bytes(load: Load) -> None:
    tokenizer = load("llama")
    entries = [token_entry(tokenizer, token_id, -0.5) for token_id in tokenizer.encode("👋")[1:]]
    assert [entry.text for entry in entries[:2]] == ["bytes:\\xf0", "bytes:\\x9f"]
    assert entries[0].bytes == [0xF0]
    assert entries[0].logprob == -0.5


def test_an_alternative_can_be_a_special_token(load: Load) -> None:
    tokenizer = load("byte_level")
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    assert token_entry(tokenizer, end, 0.0).text == "<|im_end|>"
    assert piece_entry(AnswerParser(tokenizer, AnswerForm()).add(end).piece, 0.0).bytes == []
