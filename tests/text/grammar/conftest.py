"""Vocabularies of the starter model and of a tiny byte-level one, and the grammars of each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omlx_server.models.bundled import starter
from omlx_server.models.catalogue import STARTER
from omlx_server.settings import Settings
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.vocabulary import Vocabulary
from omlx_server.text.tokenizer import Tokenizer
from tests.text.grammar.walks import Words

TINY_WIDTH = 448  # more than the tokenizer knows: logits are often padded


@pytest.fixture(scope="session")
def starter_words() -> Words:
    directory: Path = Settings().models.dirs[0]
    tokenizer = Tokenizer.load(starter.ensure(STARTER, directory, variant="f32"))
    return Words(tokenizer, Vocabulary(tokenizer, 49_152))


@pytest.fixture(scope="session")
def tiny_words(load: Callable[..., Tokenizer]) -> Words:
    tokenizer = load("byte_level")
    return Words(tokenizer, Vocabulary(tokenizer, TINY_WIDTH))


@pytest.fixture(scope="session")
def grammars(starter_words: Words) -> Iterator[Grammars]:
    made = Grammars(starter_words.vocabulary)
    yield made
    made.close()


@pytest.fixture(scope="session")
def tiny(tiny_words: Words) -> Iterator[Grammars]:
    made = Grammars(tiny_words.vocabulary)
    yield made
    made.close()
