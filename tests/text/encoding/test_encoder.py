"""Texts that are encoded piece by piece: the tokens are those of the whole, and no more is encoded
than is wanted."""

import json
import tracemalloc
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from omlx_server.errors import NoSeam, TooManyTokens
from omlx_server.text.encoding.encoder import BATCH, PIECE, KeptIds, PieceEncoder
from omlx_server.text.encoding.seams import LONGEST
from tests.text.encoding.backends import NAMES, backend_of, texts

bounded = settings(max_examples=30, deadline=None, derandomize=True)

names = pytest.mark.parametrize("name", NAMES)


def whole(name: str, text: str, *, special: bool = False) -> list[int]:
    return backend_of(name).encode(text, add_special_tokens=special).ids


@cache
def encoder_of(name: str) -> PieceEncoder:
    return PieceEncoder(backend_of(name), piece=3, batch=7, kept=KeptIds(1 << 16))


@names
@bounded
@given(text=texts)
def test_pieces_have_the_tokens_of_the_whole(name: str, text: str) -> None:
    encoder = encoder_of(name)
    assert encoder.ids(text) == whole(name, text)
    assert encoder.ids(text, special=True) == whole(name, text, special=True)
    assert encoder.beginning(text, 5)[:5] == whole(name, text)[:5]


class Noted(PieceEncoder):
    """Notes down what goes to the library in one go."""

    def __init__(self, backend: Backend, piece: int = PIECE, batch: int = BATCH) -> None:
        super().__init__(backend, piece, batch)
        self.given: list[int] = []

    def _encode_batch(
        self, texts: list[str], *, special: bool = False, long: bool = False
    ) -> list[Encoding]:
        self.given.append(sum(map(len, texts)))
        return super()._encode_batch(texts, special=special, long=long)


WORDS = "The quick brown fox, 1 of 22, jumps over the lazy dog. " * 400
JSON = json.dumps([{"name": "fox", "legs": 4}] * 800, separators=(",", ":"))
LINES = "import os\n    return x\nprint('hi')\n" * 500


@pytest.mark.parametrize("text", [WORDS, JSON, LINES], ids=["words", "json", "lines"])
@pytest.mark.parametrize("name", ["byte_level", "llama3", "o200k", "digits", "gpt2"])
def test_no_more_than_a_batch_goes_to_the_library_at_once(name: str, text: str) -> None:
    encoder = Noted(backend_of(name), piece=512, batch=4096)
    assert encoder.ids(text) == whole(name, text)
    assert max(encoder.given) <= 4096
    assert sum(encoder.given) <= len(text)


OTHERS = {
    "cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю.\n" * 100,
    "chinese": "我能吞下玻璃，而不伤身体。他说：“好”！\n" * 300,
    "korean": "다람쥐 헌 쳇바퀴에 타고파\n" * 400,
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία\n" * 200,
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("name", ["byte_level", "llama3", "o200k"])
def test_other_scripts_are_cut_too(name: str, text: str) -> None:
    encoder = Noted(backend_of(name), piece=256, batch=1024)
    assert encoder.ids(text) == whole(name, text)
    assert max(encoder.given) <= 1024


def test_no_cut_is_where_a_token_has_both_letters() -> None:
    """A vocabulary with a token for a letter and the mark behind it, of none that is tried out."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    [(letter, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("ж")
    first, second = tuple(letter)
    merges = [(first, second), (first + second, ",")]
    tokens = [*alphabet, *("".join(pair) for pair in merges)]
    backend = Backend(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder = Noted(backend, piece=3, batch=6)
    for text in ("жж,ж," * 20, "вв,в," * 20):
        assert encoder.ids(text) == backend.encode(text).ids
    assert max(encoder.given) == 100 and min(encoder.given) <= 6


@pytest.mark.parametrize("name", ["llama", "metaspace", "unigram", "wordpiece"])
def test_words_of_other_families_are_cut_too(name: str) -> None:
    encoder = Noted(backend_of(name), piece=512, batch=4096)
    encoder.ids(WORDS)
    assert max(encoder.given) <= 4096


@names
def test_no_more_is_encoded_than_is_wanted(name: str) -> None:
    encoder = Noted(backend_of(name), piece=500, batch=1000)
    with pytest.raises(TooManyTokens) as caught:
        encoder.ids(WORDS, most=600)
    assert 600 < caught.value.at_least <= len(whole(name, WORDS))
    if name not in ("words with blanks", "no split", "swallowing words"):  # these can't be cut
        assert sum(encoder.given) < 10_000
    exact = len(whole(name, "Hello there"))
    assert len(encoder.ids("Hello there", most=exact)) == exact
    with pytest.raises(TooManyTokens):
        encoder.ids("Hello there", most=exact - 1)


def test_too_many_are_never_a_list() -> None:
    """It would be made with the GIL: of a text of 8 MB that can't be cut, for 0.25 s."""
    encoder = PieceEncoder(backend_of("byte_level"), piece=1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(TooManyTokens) as caught:
            encoder.ids("a b " * 20_000, most=1_000)
        assert caught.value.at_least > 20_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("unit", [" ", "a", "😀", "e\u0301"])
@pytest.mark.parametrize("name", ["llama3", "llama"])
def test_a_text_that_can_not_be_cut_is_refused_before_it_is_encoded(name: str, unit: str) -> None:
    encoder = Noted(backend_of(name))
    times = LONGEST // len(unit.encode())
    for text in (unit * 3_000_000, "Hello there. " * 10_000 + unit * (times + BATCH)):
        with pytest.raises(NoSeam):
            encoder.ids(text)
        assert sum(encoder.given) <= 140_000
        assert encoder.counts([text, "Hello"], 9000)[0] == 9001
    encoder.given.clear()
    assert len(encoder.ids(unit * times)) > 0
    assert encoder.given == [times * len(unit)]


@names
@bounded
@given(some=st.lists(texts, max_size=12), most=st.integers(0, 30))
def test_counts_of_texts(name: str, some: Sequence[str], most: int) -> None:
    expected = [min(len(whole(name, text)), most + 1) for text in some]
    assert encoder_of(name).counts(some, most) == expected
