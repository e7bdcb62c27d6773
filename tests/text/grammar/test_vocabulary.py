"""Token ids as the grammar engine sees them, for every family of tokenizers."""

import gc
from collections.abc import Callable
from pathlib import Path
from weakref import ref

import pytest

from omlx_server.errors import BadRequest
from omlx_server.text.grammar import to_grammar
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.vocabulary import Vocabulary
from omlx_server.text.tokenizer import Tokenizer
from tests.text import makers
from tests.text.grammar.conftest import TINY_WIDTH
from tests.text.grammar.walks import Words, allowed, walk

Load = Callable[..., Tokenizer]


def test_control_tokens_never_come_from_text(tiny: Grammars, tiny_words: Words) -> None:
    constraint = tiny.compile(to_grammar.regex(r"(.|\n)*", "regex"))
    special = tiny_words.vocabulary.special_ids
    assert tiny_words.special("<|im_start|>") in special
    assert set(allowed(constraint)) & special == set(tiny_words.vocabulary.eos_ids)
    # The turn marker is not flagged special, and yet it is one; markup is text.
    assert tiny_words.tokenizer.token_id("<｜User｜>") in special
    assert tiny_words.tokenizer.token_id("<think>") in allowed(constraint)


def test_a_grammar_can_name_control_tokens(tiny: Grammars, tiny_words: Words) -> None:
    constraint = tiny.compile(to_grammar.grammar('start: <|im_start|> "a"', "grammar"))
    assert allowed(constraint) == [tiny_words.special("<|im_start|>")]


def test_ids_that_stand_for_nothing_are_never_allowed(tiny: Grammars, tiny_words: Words) -> None:
    known = tiny_words.tokenizer.vocab_size
    assert known < TINY_WIDTH
    constraint = tiny.compile(to_grammar.regex(r"(.|\n)*", "regex"))
    assert max(allowed(constraint)) < known
    assert len(constraint.mask()) == TINY_WIDTH // 8


@pytest.mark.parametrize("width", [300, 333])
def test_the_logits_can_be_fewer_than_the_tokens(load: Load, width: int) -> None:
    """Here the end tokens are beyond the logits, so no grammar could end."""
    tokenizer = load("byte_level")
    assert min(tokenizer.eos_ids) >= width
    grammars = Grammars(Vocabulary(tokenizer, width))
    try:
        with pytest.raises(BadRequest, match="no end-of-sequence token"):
            grammars.compile(to_grammar.json_object("response_format"))
    finally:
        grammars.close()


def test_a_mask_covers_logits_of_any_width(load: Load) -> None:
    tokenizer = load("llama")
    width = tokenizer.vocab_size - 1
    grammars = Grammars(Vocabulary(tokenizer, width))
    try:
        constraint = grammars.compile(to_grammar.json_object("response_format"))
        assert len(constraint.mask()) == (width + 31) // 32 * 4
        assert max(allowed(constraint)) < width
    finally:
        grammars.close()


@pytest.mark.parametrize("family", makers.GENERATIVE)
def test_every_family_spells_what_is_forced(load: Load, family: str) -> None:
    """Sentencepiece would put a space before it, and a normaliser would change it."""
    tokenizer = load(family)
    words = Words(tokenizer, Vocabulary(tokenizer, tokenizer.vocab_size))
    grammars = Grammars(words.vocabulary)
    text = 'Hello world, "ﬁn" été <s> <|im_start|>'
    try:
        constraint = grammars.compile(to_grammar.choice([text], "choice"))
        forced = constraint.forced()
        assert words.text(forced) == text
        assert not set(forced) & words.vocabulary.special_ids
        assert walk(constraint, words, 1) == text
        assert tokenizer.decode(forced) == text
    finally:
        grammars.close()


@pytest.mark.parametrize("family", ["llama", "metaspace", "unigram"])
def test_what_is_forced_is_spelled_as_in_the_middle_of_a_text(load: Load, family: str) -> None:
    """Not merely with the longest tokens that fit."""
    tokenizer = load(family)
    grammars = Grammars(Vocabulary(tokenizer, tokenizer.vocab_size))
    text = "hello there, the weather"
    try:
        forced = grammars.compile(to_grammar.choice([text], "choice")).forced()
        assert forced == tokenizer.encode("\n" + text, special=False)[-len(forced) :]
    finally:
        grammars.close()


def test_the_engine_is_made_once(starter_words: Words) -> None:
    assert starter_words.vocabulary.engine is starter_words.vocabulary.engine


def test_nothing_stays_of_a_model_that_is_gone(folder: Callable[..., Path]) -> None:
    """Neither of its tokenizer nor of the engine, which hold tens of megabytes."""
    tokenizer = Tokenizer.load(folder("byte_level", None))
    grammars = Grammars(Vocabulary(tokenizer, tokenizer.vocab_size))
    constraint = grammars.compile(to_grammar.choice(["yes", "no"], "choice"))
    assert allowed(constraint)
    grammars.close()
    gone = ref(tokenizer)
    del constraint, grammars, tokenizer
    gc.collect()
    assert gone() is None
